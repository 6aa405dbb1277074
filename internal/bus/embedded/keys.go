package embedded

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/nkeys"
)

// ensureKey returns the public key of the user seed in the file, which it makes
// if there is none.
func ensureKey(path string) (string, error) {
	seed, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return makeKey(path)
	}
	if err != nil {
		return "", fmt.Errorf("couldn't read the key %s: %w", path, err)
	}
	kp, err := nkeys.FromSeed(bytes.TrimSpace(seed))
	if err != nil {
		return "", fmt.Errorf("%s holds no nkey seed; remove it to get a new one: %w", path, err)
	}
	defer kp.Wipe()
	pub, err := kp.PublicKey()
	if err != nil || !nkeys.IsValidPublicUserKey(pub) {
		return "", fmt.Errorf("%s holds no nkey seed of a user; remove it to get a new one", path)
	}
	// A seed that others could read was meant to be private all the same.
	if err := os.Chmod(path, 0o600); err != nil {
		return "", fmt.Errorf("couldn't protect the key %s: %w", path, err)
	}
	return pub, nil
}

func makeKey(path string) (string, error) {
	kp, err := nkeys.CreateUser()
	if err != nil {
		return "", fmt.Errorf("couldn't make a key: %w", err)
	}
	defer kp.Wipe()
	seed, err := kp.Seed()
	if err != nil {
		return "", fmt.Errorf("couldn't make a key: %w", err)
	}
	pub, err := kp.PublicKey()
	if err != nil {
		return "", fmt.Errorf("couldn't make a key: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", fmt.Errorf("couldn't make the directory of the key: %w", err)
	}
	return pub, writeFile(path, append(seed, '\n'))
}

// writeFile replaces a private file as a whole, so that no reader and no crash
// sees half of it.
func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return fmt.Errorf("couldn't write %s: %w", path, err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("couldn't write %s: %w", path, err)
	}
	return nil
}
