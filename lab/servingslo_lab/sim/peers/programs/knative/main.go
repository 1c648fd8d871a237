// Command knative answers what Knative Serving's own pod autoscaler would order.
//
// One JSON object a line on stdin, the first one the setting, each later one an observation; for
// each observation one JSON object on stdout. Decision and windows are Knative's code; the bounds
// of the count are applied by the caller.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/autoscaler/aggregation"
	"knative.dev/serving/pkg/autoscaler/config"
	"knative.dev/serving/pkg/autoscaler/metrics"
	"knative.dev/serving/pkg/autoscaler/scaling"
)

// tick is tickInterval of pkg/autoscaler/scaling/multiscaler.go.
const tick = 2 * time.Second

type setting struct {
	Concurrency float64 `json:"concurrency"`
}

type observation struct {
	Seconds  float64  `json:"seconds"`
	Ready    int      `json:"ready"`
	Replicas int32    `json:"replicas"`
	InSystem *float64 `json:"in_system"`
}

type answer struct {
	Replicas int32 `json:"replicas"`
}

// cluster is what the autoscaler sees of a revision: its concurrency and its ready pods.
type cluster struct {
	stable, panic *aggregation.TimedFloat64Buckets
	ready         int
}

func (c *cluster) ReadyCount() (int, error)    { return c.ready, nil }
func (c *cluster) NotReadyCount() (int, error) { return 0, nil }

func (c *cluster) StableAndPanicConcurrency(_ types.NamespacedName, now time.Time) (float64, float64, error) {
	if c.stable.IsEmpty(now) {
		return 0, 0, metrics.ErrNoData
	}
	return c.stable.WindowAverage(now), c.panic.WindowAverage(now), nil
}

func (c *cluster) StableAndPanicRPS(_ types.NamespacedName, _ time.Time) (float64, float64, error) {
	return 0, 0, metrics.ErrNoData
}

func answered(lines *bufio.Scanner, out *json.Encoder) error {
	if !lines.Scan() {
		return lines.Err()
	}
	var given setting
	if err := json.Unmarshal(lines.Bytes(), &given); err != nil {
		return fmt.Errorf("setting: %w", err)
	}
	defaults, err := config.NewConfigFromMap(nil)
	if err != nil {
		return err
	}
	if given.Concurrency <= 0 {
		given.Concurrency = defaults.ContainerConcurrencyTargetDefault
	}
	window := defaults.StableWindow
	panicWindow := time.Duration(float64(window) * defaults.PanicWindowPercentage / 100)
	seen := &cluster{
		stable: aggregation.NewTimedFloat64Buckets(window, config.BucketSize),
		panic:  aggregation.NewTimedFloat64Buckets(panicWindow, config.BucketSize),
	}
	scaler := scaling.New(attribute.Set{}, noop.NewMeterProvider(), "sim", "fleet", seen, seen,
		&scaling.DeciderSpec{
			MaxScaleUpRate:      defaults.MaxScaleUpRate,
			MaxScaleDownRate:    defaults.MaxScaleDownRate,
			ScalingMetric:       autoscaling.Concurrency,
			TargetValue:         given.Concurrency * defaults.ContainerConcurrencyTargetFraction,
			TotalValue:          given.Concurrency,
			TargetBurstCapacity: defaults.TargetBurstCapacity,
			PanicThreshold:      defaults.PanicThresholdPercentage / 100,
			StableWindow:        window,
			ScaleDownDelay:      defaults.ScaleDownDelay,
			Reachable:           true,
		})
	logger := zap.NewNop().Sugar()
	for lines.Scan() {
		var o observation
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return fmt.Errorf("observation: %w", err)
		}
		now := time.Unix(0, 0).Add(time.Duration(o.Seconds * float64(time.Second)))
		seen.ready = o.Ready
		if o.InSystem != nil {
			// Its scraper fills each bucket, so an observation stands for all since the last one.
			for at := now.Add(config.BucketSize - tick); !at.After(now); at = at.Add(config.BucketSize) {
				seen.stable.Record(at, *o.InSystem)
				seen.panic.Record(at, *o.InSystem)
			}
		}
		found := scaler.Scale(logger, now)
		replicas := o.Replicas
		if found.ScaleValid {
			replicas = found.DesiredPodCount
		}
		if err := out.Encode(answer{Replicas: replicas}); err != nil {
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
