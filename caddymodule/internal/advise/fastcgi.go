package advise

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// The parts of FastCGI that one request without a body needs.
const (
	beginRequest = 1
	endRequest   = 3
	params       = 4
	stdin        = 5
	stdout       = 6

	responder = 1
)

// mostAnswer is how much of a status is read, in bytes. A full one has some hundred
// bytes for each process.
const mostAnswer = 4 << 20

// FastCGI asks a server for a path, and returns the body of its answer.
func FastCGI(ctx context.Context, network, address, path string) ([]byte, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()

	path, query, _ := strings.Cut(path, "?")
	var request bytes.Buffer
	record(&request, beginRequest, []byte{0, responder, 0, 0, 0, 0, 0, 0})
	var named []byte
	for _, param := range [][2]string{
		{"SCRIPT_NAME", path},
		{"SCRIPT_FILENAME", path},
		{"REQUEST_URI", path},
		{"QUERY_STRING", query},
		{"REQUEST_METHOD", http.MethodGet},
		{"SERVER_PROTOCOL", "HTTP/1.1"},
		{"GATEWAY_INTERFACE", "CGI/1.1"},
	} {
		for _, text := range param {
			named = binary.BigEndian.AppendUint32(named, uint32(len(text))|1<<31)
		}
		named = append(append(named, param[0]...), param[1]...)
	}
	record(&request, params, named)
	record(&request, params, nil)
	record(&request, stdin, nil)
	if _, err := conn.Write(request.Bytes()); err != nil {
		return nil, err
	}
	answer, err := readAnswer(conn)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("the server does not answer as FastCGI: %w", ctx.Err())
	case err != nil:
		return nil, err
	}
	return body(answer)
}

func record(b *bytes.Buffer, kind byte, content []byte) {
	b.Write([]byte{1, kind, 0, 1, byte(len(content) >> 8), byte(len(content)), 0, 0})
	b.Write(content)
}

// readAnswer returns what the records of an answer hold together.
func readAnswer(from io.Reader) (answer []byte, err error) {
	var head [8]byte
	for {
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return nil, fmt.Errorf("reading the answer: %w", err)
		}
		if head[0] != 1 {
			return nil, errors.New("the answer is not FastCGI")
		}
		content := make([]byte, int(binary.BigEndian.Uint16(head[4:6]))+int(head[6]))
		if _, err := io.ReadFull(from, content); err != nil {
			return nil, fmt.Errorf("reading the answer: %w", err)
		}
		switch head[1] {
		case stdout:
			answer = append(answer, content[:binary.BigEndian.Uint16(head[4:6])]...)
		case endRequest:
			return answer, nil
		}
		if len(answer) > mostAnswer {
			return nil, errors.New("the answer is too large for a status")
		}
	}
}

// body returns what follows the header fields, unless they tell of an error.
func body(answer []byte) ([]byte, error) {
	in := bufio.NewReader(bytes.NewReader(answer))
	header, err := textproto.NewReader(in).ReadMIMEHeader()
	if err != nil {
		return nil, fmt.Errorf("reading the answer's header: %w", err)
	}
	if text, _, _ := strings.Cut(header.Get("Status"), " "); text != "" && text != strconv.Itoa(http.StatusOK) {
		return nil, fmt.Errorf("got status %.20q, want 200: is pm.status_path this path?", text)
	}
	return io.ReadAll(in)
}
