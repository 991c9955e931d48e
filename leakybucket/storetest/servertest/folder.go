package servertest

import (
	"os"
	"os/exec"
	"runtime"
	"sync"
)

// Folder returns a folder of this process, which every user may write to. It is for servers that
// outlive a test, and for sockets, whose names must be shorter than those below t.TempDir.
//
// A shell removes it as soon as this process has ended, even if it was killed: it reads from a
// pipe that nobody else holds open. It does so for some seconds, because servers write while
// they end.
var Folder = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "throttle-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, os.ModeSticky|0o777); err != nil {
		return "", err
	}
	if runtime.GOOS == "windows" { // where no server starts
		return dir, nil
	}
	remover = exec.Command("sh", "-c", `trap "" INT QUIT TERM HUP; read -r end; for i in 1 2 3 4 5 6 7 8 9; do rm -rf "$0"; sleep 1; done`, dir)
	if _, err := remover.StdinPipe(); err != nil {
		return "", err
	}
	return dir, remover.Start()
})

// remover keeps its pipe open, which the garbage collector would close.
var remover *exec.Cmd
