// Command knative answers what Knative's own pod autoscaler would order.
//
// One JSON object a line on stdin, the first one the setting, each later one what is scraped each
// second; for each of them one JSON object on stdout. Defaults, buckets, averages, and what is made
// of annotations are Knative's code, as the decision is. What it does around them in private
// functions is written again: the ticker of its MultiScaler. The caller applies the bounds.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	"knative.dev/serving/pkg/autoscaler/config"
	"knative.dev/serving/pkg/autoscaler/metrics"
	"knative.dev/serving/pkg/autoscaler/scaling"
	kparesources "knative.dev/serving/pkg/reconciler/autoscaling/kpa/resources"
	"knative.dev/serving/pkg/reconciler/autoscaling/resources"
)

const (
	namespace, revision = "default", "revision"
	// tickInterval is that of pkg/autoscaler/scaling/multiscaler.go.
	tickInterval = 2 * time.Second
	noScale      = -1
)

type setting struct {
	Annotations map[string]string `json:"annotations"`
}

type observation struct {
	Seconds  float64  `json:"seconds"`
	Replicas int32    `json:"replicas"`
	Ready    int      `json:"ready"`
	InSystem *float64 `json:"in_system"`
}

type answer struct {
	Replicas int32 `json:"replicas"`
}

// readyPods is its resources.EndpointsCounter.
type readyPods int

func (r *readyPods) ReadyCount() (int, error)    { return int(*r), nil }
func (r *readyPods) NotReadyCount() (int, error) { return 0, nil } // not used to scale

type scaler struct {
	decider   *scaling.Decider
	collector *metrics.MetricCollector

	ready    readyPods
	scaler   scaling.UniScaler
	epoch    time.Time
	lastTick time.Time
	desired  int32
}

func newScaler(s setting) (*scaler, error) {
	defaults, err := config.NewConfigFromMap(nil)
	if err != nil {
		return nil, err
	}
	if err := autoscaling.ValidateAnnotations(context.Background(), defaults, s.Annotations); err != nil {
		return nil, err
	}
	pa := &v1alpha1.PodAutoscaler{}
	pa.Namespace, pa.Name, pa.Annotations = namespace, revision, s.Annotations
	// Nothing is scraped over the network: Record is given each sample.
	scraper := func(*v1alpha1.Metric, *zap.SugaredLogger) (metrics.StatsScraper, error) { return nil, nil }
	collector := metrics.NewMetricCollector(scraper, zap.NewNop().Sugar())
	if err := collector.CreateOrUpdate(resources.MakeMetric(pa, revision, defaults)); err != nil {
		return nil, err
	}
	return &scaler{
		decider:   kparesources.MakeDecider(pa, defaults),
		collector: collector,
		desired:   noScale,
	}, nil
}

// start makes the autoscaler. If pods are ready, that begins in panic mode at the time of the
// machine, so the observed time begins there too: at the whole second before, so that the end of the
// panic does not depend on a fraction of a second.
func (s *scaler) start(o observation) {
	s.epoch = time.Now().Truncate(config.BucketSize).Add(-elapsed(o.Seconds))
	s.scaler = scaling.New(
		*attribute.EmptySet(), noop.NewMeterProvider(), namespace, revision,
		s.collector, &s.ready, &s.decider.Spec,
	)
}

func elapsed(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)
}

func (s *scaler) decide(o observation) answer {
	s.ready = readyPods(o.Ready)
	if s.scaler == nil {
		s.start(o)
	}
	now := s.epoch.Add(elapsed(o.Seconds))
	if o.InSystem != nil {
		key := types.NamespacedName{Namespace: namespace, Name: revision}
		s.collector.Record(key, now, metrics.Stat{AverageConcurrentRequests: *o.InSystem})
	}
	if s.lastTick.IsZero() || now.Sub(s.lastTick) >= tickInterval {
		s.lastTick = now
		if found := s.scaler.Scale(zap.NewNop().Sugar(), now); found.ScaleValid {
			s.desired = found.DesiredPodCount
		}
	}
	if s.desired == noScale {
		return answer{Replicas: o.Replicas}
	}
	return answer{Replicas: s.desired}
}

func answered(lines *bufio.Scanner, out *json.Encoder) error {
	if !lines.Scan() {
		return lines.Err()
	}
	var given setting
	if err := json.Unmarshal(lines.Bytes(), &given); err != nil {
		return fmt.Errorf("setting: %w", err)
	}
	scaler, err := newScaler(given)
	if err != nil {
		return fmt.Errorf("setting: %w", err)
	}
	for lines.Scan() {
		var seen observation
		if err := json.Unmarshal(lines.Bytes(), &seen); err != nil {
			return fmt.Errorf("observation: %w", err)
		}
		if err := out.Encode(scaler.decide(seen)); err != nil {
			return err
		}
	}
	return lines.Err()
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	if err := answered(lines, json.NewEncoder(os.Stdout)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
