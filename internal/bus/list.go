package bus

import "context"

// List reads all keys of a bucket that match filter (see [KeyFilter]; ">" is
// every key), in the order in which they were last written.
func (c *Conn) List(ctx context.Context, bucket, filter string) ([]Entry, error) {
	ctx, complete := context.WithCancelCause(ctx)
	defer complete(nil)
	var list []Entry
	err := c.Watch(ctx, bucket, filter, func(batch []Entry) {
		for _, e := range batch {
			if !e.Deleted {
				list = append(list, e)
			}
		}
	}, func(live bool, _ string) {
		if live {
			complete(errListed)
		}
	})
	if context.Cause(ctx) == errListed {
		return list, nil
	}
	return nil, err
}

// errListed ends the watch of a List that has seen all.
var errListed = listed{}

type listed struct{}

func (listed) Error() string { return "all keys are listed" }
