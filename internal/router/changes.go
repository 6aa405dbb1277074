package router

// subscription tells of changes of one caller's own list of tools. C gets one
// token for each change, the first at once, then at most one per 100 ms, and
// the last change is never lost.
type subscription struct {
	C <-chan struct{}
}

// Close ends the subscription. It may be called more than once.
func (s *subscription) Close() {}
