package listener

import (
	"sync"

	"go.uber.org/zap"
)

var (
	DroppedTCP = droppedTCP
	Drops      = drops
)

// Forget makes the process one that has dropped nobody yet, for configs that come.
func Forget() { dropList = newClients() }

// Some reports whether anybody was ever to be dropped.
func Some() bool { return dropList.some.Load() }

// NewDropConnections returns a wrapper with a logger.
func NewDropConnections(logger *zap.Logger) *DropConnections {
	return &DropConnections{logger: logger, warned: new(sync.Once)}
}
