package requests

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// TestGRPC: a client of gRPC learns that it was limited, and waits as long as it is told to.
func TestGRPC(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check.OK(t, err)
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	port := servertest.FreePort(t)
	system.StartCaddy(t, system.Config{Sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone calls {
			limit 1 1/2s
		}
	}
	reverse_proxy h2c://%s
}`, port, listener.Addr())})

	ctx, cancel := context.WithTimeout(t.Context(), system.StartTime)
	defer cancel()
	dial := func(options ...grpc.DialOption) healthpb.HealthClient {
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
		conn := check.Must(grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port), options...))(t)
		t.Cleanup(func() { conn.Close() })
		return healthpb.NewHealthClient(conn)
	}
	plain := dial()
	check.Must(plain.Check(ctx, new(healthpb.HealthCheckRequest)))(t)
	_, err = plain.Check(ctx, new(healthpb.HealthCheckRequest))
	s := status.Convert(err)
	check.That(t, s.Code() == codes.ResourceExhausted && strings.Contains(s.Message(), "Please wait"), "got %v, want RESOURCE_EXHAUSTED and for how long to wait", err)
	stream, err := plain.Watch(ctx, new(healthpb.HealthCheckRequest))
	if err == nil {
		_, err = stream.Recv()
	}
	check.That(t, status.Code(err) == codes.ResourceExhausted, "got %v for a stream, want RESOURCE_EXHAUSTED", err)
	patient := dial(grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
		"maxAttempts": 2, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
		"retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`))
	began := time.Now()
	if _, err := patient.Check(ctx, new(healthpb.HealthCheckRequest)); err != nil {
		t.Errorf("got %v after %v, want the second attempt to wait, and pass", err, time.Since(began))
	}
}
