package caddymodule

import (
	"sync"

	"go.uber.org/zap"
)

// MostReport is how long a report may be, in bytes.
const MostReport = mostReport

// NewDropConnections returns a wrapper with a logger.
func NewDropConnections(logger *zap.Logger) *DropConnections {
	return &DropConnections{logger: logger, warned: new(sync.Once)}
}
