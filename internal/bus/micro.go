package bus

import (
	"fmt"
	"regexp"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"toolhub/internal/mcp"
)

// The service protocol of NATS (ADR-32), answered here because the micro package
// runs the calls of an endpoint one by one and counts them wrongly if it is
// made not to.

var (
	microName    = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)
	microVersion = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)
)

// microIdentity begins every answer.
type microIdentity struct {
	Name     string            `json:"name"`
	ID       string            `json:"id"`
	Version  string            `json:"version"`
	Metadata map[string]string `json:"metadata"`
	Type     string            `json:"type"`
}

type microInfo struct {
	microIdentity
	Description string              `json:"description"`
	Endpoints   []microEndpointInfo `json:"endpoints"`
}

type microEndpointInfo struct {
	Name       string            `json:"name"`
	Subject    string            `json:"subject"`
	QueueGroup string            `json:"queue_group"`
	Metadata   map[string]string `json:"metadata"`
}

type microStats struct {
	microIdentity
	Started   time.Time            `json:"started"`
	Endpoints []microEndpointStats `json:"endpoints"`
}

type microEndpointStats struct {
	Name          string    `json:"name"`
	Subject       string    `json:"subject"`
	QueueGroup    string    `json:"queue_group"`
	Requests      uint64    `json:"num_requests"`
	Errors        uint64    `json:"num_errors"`
	LastError     string    `json:"last_error"`
	ProcessingNS  int64     `json:"processing_time"`
	AverageNS     int64     `json:"average_processing_time"`
	RunningOurOwn int       `json:"running"`
	StartedOurOwn time.Time `json:"started"`
}

// stats counts the calls of a Service.
type stats struct {
	started time.Time

	mu         sync.Mutex
	requests   uint64        // guarded by mu
	errors     uint64        // guarded by mu
	lastError  string        // guarded by mu
	processing time.Duration // guarded by mu
}

func (s *stats) count(took time.Duration, fault *mcp.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	s.processing += took
	if fault != nil {
		s.errors++
		s.lastError = fault.Error()
	}
}

// Advertise makes c answer `nats micro` as the service name, for example
// toolhub-worker, with one endpoint for each [Service] of c. version is a
// semantic version. It ends with Close.
func (c *Conn) Advertise(name, version, description string) error {
	if !microName.MatchString(name) {
		return fmt.Errorf("service name %q: letters, digits, - and _ are allowed", name)
	}
	if !microVersion.MatchString(version) {
		return fmt.Errorf("service version %q: must be a semantic version like 1.2.3", version)
	}
	self := microIdentity{
		Name: name, ID: nuid.Next(), Version: version,
		Metadata: map[string]string{"hub": c.cfg.Hub, "identity": c.cfg.Identity},
	}
	started := time.Now().UTC()
	answers := map[string]func() any{
		"PING": func() any {
			self := self
			self.Type = "io.nats.micro.v1.ping_response"
			return self
		},
		"INFO": func() any {
			info := microInfo{microIdentity: self, Description: description, Endpoints: []microEndpointInfo{}}
			info.Type = "io.nats.micro.v1.info_response"
			for _, s := range c.endpoints() {
				info.Endpoints = append(info.Endpoints, microEndpointInfo{Name: s.endpointName(), Subject: s.subject, QueueGroup: s.queue, Metadata: map[string]string{}})
			}
			return info
		},
		"STATS": func() any {
			st := microStats{microIdentity: self, Started: started, Endpoints: []microEndpointStats{}}
			st.Type = "io.nats.micro.v1.stats_response"
			for _, s := range c.endpoints() {
				st.Endpoints = append(st.Endpoints, s.microStats())
			}
			return st
		},
	}
	for verb, answer := range answers {
		reply := func(msg *nats.Msg) {
			body, err := json.Marshal(answer())
			if err == nil {
				err = msg.Respond(body)
			}
			if err != nil {
				c.log.Warn("couldn't answer a service request", "verb", verb, "error", err)
			}
		}
		for _, subject := range []string{"$SRV." + verb, "$SRV." + verb + "." + name, "$SRV." + verb + "." + name + "." + self.ID} {
			if err := c.subscribe(subject, "", reply); err != nil {
				return err
			}
		}
	}
	return nil
}

// endpoints are the services that run, in the order of their subjects.
func (c *Conn) endpoints() []*Service {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*Service, 0, len(c.services))
	for s := range c.services {
		all = append(all, s)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].subject < all[j].subject })
	return all
}

// endpointName is the server, or the end of the subject, in the letters that
// endpoint names have.
func (s *Service) endpointName() string {
	name := s.server
	if name == "" {
		rest := strings.TrimSuffix(strings.TrimPrefix(s.subject, root+"."+token(s.conn.cfg.Hub)+"."), ".>")
		name = rest
	}
	out := []byte(name)
	for i, c := range out {
		if !plain(c) {
			out[i] = '_'
		}
	}
	return string(out)
}

func (s *Service) microStats() microEndpointStats {
	running := s.Running()
	s.stats.mu.Lock()
	defer s.stats.mu.Unlock()
	m := microEndpointStats{
		Name: s.endpointName(), Subject: s.subject, QueueGroup: s.queue,
		Requests: s.stats.requests, Errors: s.stats.errors, LastError: s.stats.lastError,
		ProcessingNS: s.stats.processing.Nanoseconds(), RunningOurOwn: running, StartedOurOwn: s.stats.started.UTC(),
	}
	if m.Requests > 0 {
		m.AverageNS = m.ProcessingNS / int64(m.Requests) //nolint:gosec // a count of calls
	}
	return m
}
