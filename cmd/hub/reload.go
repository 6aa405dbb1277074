package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"toolhub/internal/config"
	"toolhub/internal/registry"
)

// settleTime is how long a file must be left alone before it is read: editors
// write in several steps.
const settleTime = 200 * time.Millisecond

// reload applies the configuration file on SIGHUP and whenever it changes, until
// ctx ends. A file that does not hold is reported and changes nothing.
func (n *node) reload(ctx context.Context) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)

	changes, closeWatch := watchFile(n.cfg.Path, n.log)
	defer closeWatch()
	// The content tells a change from mere touching.
	last := digest(n.cfg.Path)
	settled := time.NewTimer(0)
	<-settled.C
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			last = digest(n.cfg.Path)
			n.apply(ctx)
		case <-changes:
			settled.Reset(settleTime)
		case <-settled.C:
			if now := digest(n.cfg.Path); now != last && now != ([sha256.Size]byte{}) {
				last = now
				n.apply(ctx)
			}
		}
	}
}

// apply loads the file and makes it the hub's definition.
func (n *node) apply(ctx context.Context) {
	file, err := n.cfg.Reload()
	if err != nil {
		if e, ok := errors.AsType[*config.Error](err); ok {
			for _, p := range e.Problems {
				n.log.Error("configuration not applied", "file", p.File, "line", p.Line, "field", p.Field, "problem", p.Message)
			}
			return
		}
		n.log.Error("configuration not applied", "error", err)
		return
	}
	for _, fixed := range []struct {
		field    string
		now, was any
	}{
		{"hub", file.Hub, n.file.Hub},
		{"listen", file.Listen, n.file.Listen},
		{"state_dir", file.StateDir, n.file.StateDir},
		{"nats", file.NATS, n.file.NATS},
	} {
		if fixed.now != fixed.was {
			n.log.Warn("a change needs a restart of the hub", "field", fixed.field)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	diff, err := registry.Apply(ctx, n.workerConn, file)
	if err != nil {
		n.log.Error("configuration not applied in full; it is tried again at the next change or SIGHUP", "error", err)
		return
	}
	n.log.Info("configuration applied", "settings", diff.Settings, "added", diff.Added, "changed", diff.Changed, "removed", diff.Removed)
}

// watchFile sends on the channel whenever the file at path may have changed. It
// watches the folder, since editors put a new file in the place of the old one,
// and so do mounted volumes by way of a link. Where watching is impossible the
// channel stays silent and SIGHUP remains.
func watchFile(path string, log *slog.Logger) (<-chan struct{}, func()) {
	changes := make(chan struct{}, 1)
	w, err := fsnotify.NewWatcher()
	if err == nil {
		if err = w.Add(filepath.Dir(path)); err != nil {
			w.Close()
		}
	}
	if err != nil {
		log.Warn("the configuration file is not watched; SIGHUP applies a change", "error", err)
		return changes, func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case e, ok := <-w.Events:
				if !ok {
					return
				}
				if base := filepath.Base(e.Name); base != filepath.Base(path) && base != "..data" {
					continue
				}
			case _, ok := <-w.Errors: // events may be lost: look
				if !ok {
					return
				}
			}
			select {
			case changes <- struct{}{}:
			default: // one is waiting already
			}
		}
	}()
	return changes, func() {
		w.Close()
		<-done
	}
}

// digest is that of the file's content, zero where it cannot be read.
func digest(path string) (sum [sha256.Size]byte) {
	f, err := os.Open(path)
	if err != nil {
		return sum
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, 16<<20)); err != nil {
		return sum
	}
	h.Sum(sum[:0])
	return sum
}
