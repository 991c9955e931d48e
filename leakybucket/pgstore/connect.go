package pgstore

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// connectPatience is the timeout of one attempt to connect. It is as long as
	// requests wait for the first connection.
	connectPatience = 2 * time.Second

	// connections are one for batches, of which one runs at a time, and one for all else.
	connections = 2

	// longestConnectTimeout is the timeout that pgx sets if the URL gives none.
	longestConnectTimeout = 2 * time.Minute
)

// poolConfig returns the configuration of the connections.
func (o *Options) poolConfig(url string) (*pgxpool.Config, error) {
	config, err := o.parseURL(url)
	if err != nil {
		return nil, err
	}
	// Certificates and password files change under the same path.
	config.BeforeConnect = func(_ context.Context, connect *pgx.ConnConfig) error {
		fresh, err := o.parseURL(url)
		if err == nil {
			*connect = *fresh.ConnConfig
		}
		return err
	}
	config.MaxConns, config.MinConns, config.MinIdleConns = connections, 0, 0
	config.PingTimeout = connectPatience
	return config, nil
}

// parseURL parses the URL and reads the files that it names. Its errors quote
// nothing of the URL, because a mistyped URL may hold a password anywhere.
func (o *Options) parseURL(text string) (*pgxpool.Config, error) {
	if u, err := url.Parse(text); err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, errors.New("invalid URL: want postgres://user:password@host:5432/database, special characters in the password percent-encoded")
	}
	config, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, errors.New("invalid setting in the URL: want libpq's settings, such as ?sslmode=verify-full&sslrootcert=<file>, and files that can be read")
	}
	connect := config.ConnConfig
	connect.User, connect.Password = cmp.Or(o.User, connect.User), cmp.Or(o.Password, connect.Password)
	if connect.ConnectTimeout == 0 || connect.ConnectTimeout >= longestConnectTimeout {
		connect.ConnectTimeout = connectPatience
	}
	if _, given := connect.RuntimeParams["application_name"]; !given {
		connect.RuntimeParams["application_name"] = "throttle"
	}
	if connect.ValidateConnect == nil { // a connection to a standby would be kept for as long as it fails
		connect.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	// A pooler may give each transaction another session, so no statement may
	// be prepared in one.
	connect.DefaultQueryExecMode = pgx.QueryExecModeExec
	connect.StatementCacheCapacity, connect.DescriptionCacheCapacity = 0, 0
	return config, nil
}

// address returns the first host of a configuration, for errors.
func address(config *pgx.ConnConfig) string {
	if strings.HasPrefix(config.Host, "/") {
		return config.Host
	}
	return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
}
