// Draw draws the pictures of the documentation, from the arithmetic of leakybucket
// or from what a test has measured, where there is any:
//
//	go run ./docs/pictures
//
// It writes them beside itself. A test holds the pictures to what it draws.
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
)

// pictures are all pictures by their file names.
var pictures = map[string]func() string{
	"level.svg":        level,
	"fixed-window.svg": fixedWindow,
	"delay.svg":        delay,
	"block.svg":        block,
	"request.svg":      request,
	"house.svg":        house,
	"refusal.svg":      refusal,
	"scraper.svg":      scraper,
}

func main() {
	folder := "docs/pictures"
	if _, err := os.Stat(folder); err != nil {
		log.Fatalf("drawing: %v: want to run at the top of the repository", err)
	}
	for name, draw := range pictures {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(draw()), 0o644); err != nil {
			log.Fatalf("drawing: %v", err)
		}
		fmt.Println(filepath.Join(folder, name))
	}
}
