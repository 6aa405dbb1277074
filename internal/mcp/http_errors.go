package mcp

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// sessionLostError says that a legacy server does not know the session any more,
// and so did not run the call.
type sessionLostError struct {
	fault error // what it is when the session cannot be renewed
}

func (e *sessionLostError) Error() string { return e.fault.Error() }

// refused is the error of a call that was answered with a status that is no
// success; it reads and closes the answer.
func (c *httpConn) refused(x *httpExchange, resp *http.Response, kind string) error {
	defer resp.Body.Close()
	status := resp.StatusCode
	var rpc *Error
	var forUs bool // it is about this very request
	limit := 4 << 10
	if kind == "application/json" {
		limit = c.opts.MaxMessageBytes
	}
	if resp.ContentLength <= int64(limit) {
		body, err := readBody(resp.Body, resp.ContentLength, limit)
		if x.ctx.Err() != nil {
			c.tellCancelled(x)
			return x.gaveUp(true)
		}
		if err == nil && kind == "application/json" {
			if m, err := ParseMessage(body, Lenient); err == nil && m.Err != nil && (m.ID == nil || isID(m.ID, x.id)) {
				rpc, forUs = m.Err, m.ID != nil
			}
		}
	}
	fault := c.statusFault(resp, rpc)
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusTooManyRequests:
		return fault
	case x.session != nil && x.session.id != "" && sessionLost(status, rpc, forUs):
		return &sessionLostError{fault}
	case rpc != nil && status >= 400 && status < 500:
		return rpc
	}
	return fault
}

// sessionLost reports whether an answer says that the session is unknown. By the
// specification that is 404. Many servers made from an old example say 400 with
// a JSON-RPC error that has no id and speaks of the session.
func sessionLost(status int, rpc *Error, forUs bool) bool {
	switch status {
	case http.StatusNotFound:
		return rpc == nil || !forUs || rpc.Code != CodeMethodNotFound
	case http.StatusBadRequest:
		return rpc != nil && !forUs && strings.Contains(strings.ToLower(rpc.Message), "session")
	}
	return false
}

func (c *httpConn) statusFault(resp *http.Response, rpc *Error) error {
	status := resp.StatusCode
	details := struct {
		Status     int      `json:"status"`
		Challenges []string `json:"challenges,omitempty"`
	}{Status: status}
	f := &Fault{Server: c.opts.Server}
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		f.Kind, f.Reason = KindAuth, "unauthorized"
		f.Message = "the server wants credentials, or others than it got (status 401)"
		if status == http.StatusForbidden {
			f.Reason, f.Message = "forbidden", "the server forbids this with the credentials that it got (status 403)"
		}
		for _, challenge := range resp.Header.Values("Www-Authenticate") {
			if len(details.Challenges) < 8 && len(challenge) <= 4<<10 {
				details.Challenges = append(details.Challenges, strings.ToValidUTF8(challenge, "\ufffd"))
			}
		}
	case status == http.StatusTooManyRequests:
		f.Kind, f.Reason, f.Retryable = KindRateLimited, "too_many_requests", true
		f.Message = "the server asks for fewer calls (status 429)"
		after := retryAfter(resp.Header.Get("Retry-After"), time.Now())
		f.RetryAfterMS = after.Milliseconds()
		if after > 0 {
			f.Message += ", the next one in " + after.String()
		}
	case status == http.StatusRequestEntityTooLarge:
		f.Kind, f.Reason, f.Message = KindMessageTooLarge, "request_too_large", "the request is beyond the server's own limit (status 413)"
	case status < 400:
		f.Kind, f.Reason = KindTransport, "redirect"
		f.Message = "the server redirects (status " + strconv.Itoa(status) + "), which is not followed; configure the final URL"
	default:
		f.Kind, f.Reason = KindTransport, "http_status"
		f.Message = "the server answered with the status " + strconv.Itoa(status) + " " + http.StatusText(status)
	}
	if rpc != nil && status >= 400 {
		f.Message += ": " + short(rpc.Message)
	}
	if b, err := json.Marshal(details); err == nil {
		f.Details = b
	}
	return f
}

// retryAfter reads a Retry-After header (RFC 9110, section 10.2.3), 0 if it has
// none or nonsense, at most a day.
func retryAfter(value string, now time.Time) time.Duration {
	const most = 24 * time.Hour
	if seconds, err := strconv.ParseUint(value, 10, 63); err == nil {
		return time.Duration(min(seconds, uint64(most/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(0, at.Sub(now)), most)
	}
	return 0
}
