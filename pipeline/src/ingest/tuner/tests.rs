//! Tests the tuner on a model of a pipeline.

use proptest::prelude::*;

use millstream_io::limits::{MAX_STREAMS, ReadLimits};

use super::*;

/// A pipeline whose rate is that of its slowest stage.
#[derive(Clone, Copy, Debug)]
struct Model {
    /// Rows per second of one decoding lane on an exclusive core.
    decoder: f64,
    /// Cores not used by other jobs.
    cores: f64,
    /// Bytes per second of one storage stream, and of all streams together.
    stream: f64,
    storage: f64,
    /// The latency of a range in seconds, excluding its transfer.
    latency: f64,
    /// Rows per second that training consumes.
    consumer: f64,
}

const ROW_BYTES: f64 = 500.0;
const LANES: f64 = 16.0;

const LOCAL: Model =
    Model { decoder: 1e6, cores: 8.0, stream: 1e9, storage: 4e9, latency: 1e-4, consumer: f64::INFINITY };

const BOUNDS: Bounds = Bounds {
    most_decoders: 8,
    most_streams: MAX_STREAMS,
    least_object_bytes: 192 << 10,
    most_object_bytes: 16 << 20,
    fixed_decoders: false,
    fixed_streams: false,
};

const START: Setting = Setting { decoders: 2, streams: 2, object_bytes: 1 << 20 };

impl Model {
    fn decoding(&self, setting: Setting) -> f64 {
        let decoders = f64::from(setting.decoders);
        // More threads than cores cause overhead.
        let crowding = 1.0 - 0.02 * (decoders - self.cores).max(0.0);
        self.decoder * decoders.min(self.cores) * crowding
    }

    fn fetching(&self, setting: Setting) -> f64 {
        let limits = ReadLimits::default();
        limits.set_streams(setting.streams);
        limits.set_object_bytes(setting.object_bytes);
        let ranges = limits.ranges();
        let bytes = ranges.bytes as f64;
        let stream = bytes / (self.latency + bytes / self.stream);
        (LANES * f64::from(ranges.in_flight) * stream).min(self.storage) / ROW_BYTES
    }

    /// A sample of the model, with a rate that deviates by up to `noise`.
    fn sample(&self, setting: Setting, noise: f64) -> Sample {
        let ingest = self.decoding(setting).min(self.fetching(setting));
        let rate = ingest.min(self.consumer);
        let decodes = rate / self.decoding(setting);
        Sample {
            rate: rate * (1.0 + noise),
            consumer_wait: 1.0 - rate / ingest,
            lanes_fetching: if self.fetching(setting) < self.decoding(setting) { LANES * 0.7 } else { 0.5 },
            lanes_queueing: if decodes > 0.95 { LANES * 0.5 } else { 0.0 },
        }
    }

    /// The best rate of any setting within `bounds`.
    fn best(&self, bounds: &Bounds) -> f64 {
        let mut best = 0.0_f64;
        for decoders in 1..=bounds.most_decoders {
            for streams in 1..=bounds.most_streams {
                for shift in 0..10 {
                    let object_bytes = (bounds.least_object_bytes << shift).min(bounds.most_object_bytes);
                    let setting = Setting { decoders, streams, object_bytes };
                    best = best.max(self.sample(setting, 0.0).rate);
                }
            }
        }
        best
    }
}

/// Steps until the tuner is settled, at most `most` times; returns the number of steps.
fn settle(tuner: &mut Tuner, model: &Model, noise: f64, most: usize) -> usize {
    for step in 0..most {
        if tuner.is_settled() {
            return step;
        }
        // Periodic noise with a mean close to 0.
        let noise = noise * [0.3, -1.0, 0.7, 1.0, -0.4, -0.6][step % 6];
        tuner.step(&model.sample(tuner.setting(), noise));
    }
    panic!("not settled after {most} steps: {tuner:?}");
}

const WITHIN: usize = 90;

#[test]
fn it_settles_near_the_best_for_every_bottleneck() {
    let far = Model { stream: 3e7, latency: 0.05, ..LOCAL };
    let slow = Model { storage: 1e8, ..LOCAL };
    let busy = Model { cores: 2.0, ..LOCAL };
    for model in [LOCAL, far, slow, busy] {
        let mut tuner = Tuner::new(BOUNDS, START);
        settle(&mut tuner, &model, 0.01, WITHIN);
        let (rate, best) = (model.sample(tuner.setting(), 0.0).rate, model.best(&BOUNDS));
        assert!(rate > 0.85 * best, "{model:?}: {rate} of {best} at {:?}", tuner.setting());
    }
}

#[test]
fn useless_resources_are_returned() {
    let model = Model { storage: 1e8, ..LOCAL };
    let mut tuner = Tuner::new(BOUNDS, Setting { decoders: 8, streams: 16, ..START });
    settle(&mut tuner, &model, 0.005, WITHIN);
    let Setting { decoders, streams, .. } = tuner.setting();
    assert_eq!((decoders, streams), (1, 1));
}

#[test]
fn it_settles_again_when_another_job_starts_and_when_the_storage_slows() {
    let mut tuner = Tuner::new(BOUNDS, START);
    settle(&mut tuner, &LOCAL, 0.01, WITHIN);
    assert_eq!(tuner.setting().decoders, 8);

    let busy = Model { cores: 3.0, ..LOCAL };
    for _ in 0..STRIKES {
        assert!(tuner.is_settled());
        tuner.step(&busy.sample(tuner.setting(), 0.0));
    }
    assert!(!tuner.is_settled(), "a lasting change is detected");
    settle(&mut tuner, &busy, 0.01, WITHIN);
    assert!((3..=5).contains(&tuner.setting().decoders), "{:?}", tuner.setting());

    let far = Model { stream: 2e7, latency: 0.02, ..LOCAL };
    for _ in 0..=STRIKES {
        tuner.step(&far.sample(tuner.setting(), 0.0));
    }
    settle(&mut tuner, &far, 0.01, WITHIN);
    let rate = far.sample(tuner.setting(), 0.0).rate;
    assert!(rate > 0.85 * far.best(&BOUNDS), "{:?}", tuner.setting());
}

#[test]
fn transient_noise_does_not_restart_the_search() {
    let mut tuner = Tuner::new(BOUNDS, START);
    settle(&mut tuner, &LOCAL, 0.01, WITHIN);
    let settled = tuner.setting();
    for step in 0..60 {
        let noise = if step % 3 == 0 { -0.5 } else { 0.1 };
        tuner.step(&LOCAL.sample(tuner.setting(), noise));
        assert!(tuner.is_settled());
    }
    assert_eq!(tuner.setting(), settled);
}

#[test]
fn nothing_is_tried_while_training_is_the_bottleneck() {
    let model = Model { consumer: 1e5, ..LOCAL };
    let mut tuner = Tuner::new(BOUNDS, START);
    for _ in 0..50 {
        tuner.step(&model.sample(tuner.setting(), 0.0));
        assert_eq!(tuner.setting(), START);
    }
    // Also if the consumer becomes the bottleneck during a trial.
    for steps in 1..12 {
        let mut tuner = Tuner::new(BOUNDS, START);
        let mut kept = START;
        for _ in 0..steps {
            tuner.step(&LOCAL.sample(tuner.setting(), 0.0));
            if let Phase::Trying { from, .. } = tuner.phase {
                kept = from;
            }
        }
        tuner.step(&model.sample(tuner.setting(), 0.0));
        assert_eq!(tuner.setting(), kept);
    }
}

#[test]
fn resources_set_by_the_job_are_not_tuned() {
    let bounds = Bounds { fixed_decoders: true, fixed_streams: true, ..BOUNDS };
    let far = Model { stream: 3e7, latency: 0.05, ..LOCAL };
    let mut tuner = Tuner::new(bounds, START);
    settle(&mut tuner, &far, 0.01, WITHIN);
    let Setting { decoders, streams, object_bytes } = tuner.setting();
    assert_eq!((decoders, streams), (START.decoders, START.streams));
    assert!(object_bytes > START.object_bytes, "the rest is still tuned");
}

proptest! {
    /// Holds for arbitrary samples, including invalid ones.
    #[test]
    fn every_setting_is_within_bounds(
        most_decoders in 1_u32..20, most_streams in 1_u32..20, most in 1_u64..1 << 24,
        decoders in 0_u32..40, streams in 0_u32..40, object_bytes in 0_u64..1 << 28,
        samples in prop::collection::vec((0.0..1e7_f64, 0.0..0.2_f64, 0.0..16.0_f64, 0.0..16.0_f64), 0..200),
    ) {
        let least = most / 3;
        let bounds = Bounds { most_decoders, most_streams, least_object_bytes: least, most_object_bytes: most, ..BOUNDS };
        let mut tuner = Tuner::new(bounds, Setting { decoders, streams, object_bytes });
        for (rate, consumer_wait, lanes_fetching, lanes_queueing) in samples {
            let Setting { decoders, streams, object_bytes } = tuner.setting();
            prop_assert!((1..=most_decoders).contains(&decoders));
            prop_assert!((1..=most_streams).contains(&streams));
            prop_assert!((least..=most).contains(&object_bytes));
            tuner.step(&Sample { rate, consumer_wait, lanes_fetching, lanes_queueing });
        }
    }
}
