// Command aibrix answers what AIBrix's own pod autoscaler would order.
//
// One JSON object a line on stdin, the first one the setting, each later one an observation; for
// each observation one JSON object on stdout. Windows, averages and the recommendation are
// AIBrix's code. What its reconciler does around them in private functions is written again here:
// the cooldown window (stabilizeRecommendation) and the mean over pods (UpdateMetrics).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/klog/v2"

	autoscaling "github.com/vllm-project/aibrix/api/autoscaling/v1alpha1"
	"github.com/vllm-project/aibrix/pkg/controller/podautoscaler/algorithm"
	scalingctx "github.com/vllm-project/aibrix/pkg/controller/podautoscaler/context"
	"github.com/vllm-project/aibrix/pkg/controller/podautoscaler/types"
)

const metric = "load"

type setting struct {
	Strategy      string            `json:"strategy"`
	Target        float64           `json:"target"`
	Minimum       int32             `json:"minimum"`
	Maximum       int32             `json:"maximum"`
	StableSeconds float64           `json:"stable_seconds"`
	PanicSeconds  float64           `json:"panic_seconds"`
	Annotations   map[string]string `json:"annotations"`
}

type observation struct {
	Seconds  float64   `json:"seconds"`
	Replicas int32     `json:"replicas"`
	Values   []float64 `json:"values"`
}

type answer struct {
	Replicas int32  `json:"replicas"`
	Reason   string `json:"reason"`
}

type recommended struct {
	at       time.Time
	replicas int32
}

type scaler struct {
	algorithm     algorithm.ScalingAlgorithm
	context       scalingctx.ScalingContext
	stable, panic *types.TimeWindow
	history       []recommended
}

func seconds(value float64) time.Duration {
	return time.Duration(value * float64(time.Second))
}

func newScaler(s setting) (*scaler, error) {
	resource := &autoscaling.PodAutoscaler{}
	resource.Annotations = s.Annotations
	resource.Spec.MetricsSources = []autoscaling.MetricSource{{
		TargetMetric: metric, TargetValue: fmt.Sprintf("%g", s.Target),
	}}
	context := scalingctx.NewBaseScalingContext()
	if err := context.UpdateByPaTypes(resource); err != nil {
		return nil, err
	}
	context.SetMinReplicas(s.Minimum)
	context.SetMaxReplicas(s.Maximum)
	return &scaler{
		algorithm: algorithm.NewScalingAlgorithm(autoscaling.ScalingStrategyType(s.Strategy)),
		context:   context,
		stable:    types.NewTimeWindow(seconds(s.StableSeconds), time.Second),
		panic:     types.NewTimeWindow(seconds(s.PanicSeconds), time.Second),
	}, nil
}

func (s *scaler) decide(o observation) (answer, error) {
	now := time.Unix(0, 0).Add(seconds(o.Seconds))
	if len(o.Values) > 0 {
		sum := 0.0
		for _, value := range o.Values {
			sum += value
		}
		s.stable.Record(now, sum/float64(len(o.Values)))
		s.panic.Record(now, sum/float64(len(o.Values)))
	}
	if s.stable.Size() == 0 {
		return answer{Replicas: o.Replicas, Reason: "no metric yet"}, nil
	}
	stable, err := s.stable.Avg()
	if err != nil {
		return answer{}, err
	}
	panic, err := s.panic.Avg()
	if err != nil {
		return answer{}, err
	}
	found, err := s.algorithm.ComputeRecommendation(context.Background(), algorithm.ScalingRequest{
		CurrentReplicas: o.Replicas,
		AggregatedMetrics: &types.AggregatedMetrics{
			MetricKey: types.MetricKey{MetricName: metric}, StableValue: stable, PanicValue: panic,
			LastUpdated: now,
		},
		ScalingContext: s.context,
		Timestamp:      now,
	})
	if err != nil {
		return answer{}, err
	}
	replicas := s.stabilized(found.DesiredReplicas, o.Replicas, now)
	return answer{Replicas: replicas, Reason: found.Reason}, nil
}

// stabilized is stabilizeRecommendation of podautoscaler_controller.go: the largest of the window
// for a rise, the least of it for a fall.
func (s *scaler) stabilized(wanted, current int32, now time.Time) int32 {
	s.history = append(s.history, recommended{at: now, replicas: wanted})
	up, down := s.context.GetScaleUpCooldownWindow(), s.context.GetScaleDownCooldownWindow()
	kept := s.history[:0]
	for _, one := range s.history {
		if one.at.After(now.Add(-max(up, down))) {
			kept = append(kept, one)
		}
	}
	s.history = kept
	if wanted == current {
		return current
	}
	window := down
	if wanted > current {
		window = up
	}
	found := wanted
	for _, one := range s.history {
		if !one.at.After(now.Add(-window)) {
			continue
		}
		if wanted > current {
			found = max(found, one.replicas)
		} else {
			found = min(found, one.replicas)
		}
	}
	return found
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
		found, err := scaler.decide(seen)
		if err != nil {
			return err
		}
		if err := out.Encode(found); err != nil {
			return err
		}
	}
	return lines.Err()
}

func main() {
	logs := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(logs)
	_ = logs.Set("logtostderr", "false")
	klog.SetOutput(io.Discard)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	if err := answered(lines, json.NewEncoder(os.Stdout)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
