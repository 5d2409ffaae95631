//! A simulated day of a host with 10,000 jobs of twelve users.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::*;

const JOBS: usize = 10_000;
const DAY_SECONDS: f64 = 86_400.0;
const GIB: u64 = 1 << 30;

const HOST: Capacity =
    Capacity { memory_bytes: 512 * GIB, threads: 96, gpus: 8, max_jobs: None, max_jobs_per_user: Some(24) };

/// A job of the day: what the scheduler learns, and what it does not.
#[derive(Clone)]
struct Planned {
    job: Waiting,
    arrives: f64,
    /// What it turns out to need.
    demand: Demand,
    preparation_seconds: f64,
    training_seconds: f64,
    fails_in_preparation: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Arrives(usize),
    Prepared(usize),
    Ends(usize),
}

/// What happened to a job.
#[derive(Clone, Debug, Default)]
struct Outcome {
    started: Option<f64>,
    ended: Option<f64>,
    preparations: u32,
}

/// Random numbers of SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators", OOPSLA 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[(self.next() % of.len() as u64) as usize]
    }
}

/// A day: most jobs are short, some run for hours; half of them need a GPU; one user in twelve submits a third of all.
fn day(seed: u64) -> Vec<Planned> {
    let mut random = Random(seed);
    let mut jobs: Vec<_> = (0..JOBS)
        .map(|number| {
            let user = if random.unit() < 0.33 { 0 } else { 1 + (random.next() % 11) as UserId };
            let gpus = (random.unit() < 0.5).then(|| (random.next() % 8) as u32);
            let gpus: Gpus = gpus.into_iter().collect();
            let threads = if !gpus.is_empty() { 4 } else { random.pick(&[2, 4, 8, 8, 16, 96]) };
            let said =
                Demand { memory_bytes: random.pick(&[2, 2, 4, 8]) * GIB, threads: Some(threads), gpus };
            let model_bytes = random.pick(&[0, 1, 1, 2, 8, 60]) * GIB;
            let demand = Demand { memory_bytes: said.memory_bytes + model_bytes, ..said.clone() };
            let training_seconds =
                if random.unit() < 0.01 { 2_000.0 } else { 4.0 } * (0.1 - random.unit().ln());
            let job = Waiting {
                id: format!("job-{number}"),
                user,
                priority: random.pick(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 10]),
                demand: said,
                is_prepared: false,
                is_suspect: false,
                expected_seconds: (random.unit() < 0.2).then_some(training_seconds),
            };
            let arrives = random.unit() * DAY_SECONDS * 0.9;
            let preparation_seconds = 0.2 + 2.0 * random.unit();
            let fails_in_preparation = random.unit() < 0.02;
            Planned { job, arrives, demand, preparation_seconds, training_seconds, fails_in_preparation }
        })
        .collect();
    jobs.sort_by(|a, b| a.arrives.total_cmp(&b.arrives));
    jobs
}

/// Runs jobs through a scheduler until all have ended, and checks each decision.
struct Simulation {
    jobs: Vec<Planned>,
    numbers: HashMap<String, usize>,
    scheduler: Scheduler,
    outcomes: Vec<Outcome>,
    /// What happens next, by time; the second number keeps the order of equal times.
    events: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    /// Jobs that hold their demand, with what is known of their demand and when they end.
    active: HashMap<usize, (Demand, Option<f64>)>,
    /// The largest number of threads in use at any time.
    most_threads: u32,
    /// For a job that was first of the queue, the latest time at which it starts if no later job delays it.
    promised: HashMap<usize, f64>,
}

impl Simulation {
    fn new(jobs: Vec<Planned>, capacity: Capacity) -> Self {
        let numbers = jobs.iter().enumerate().map(|(number, job)| (job.job.id.clone(), number)).collect();
        let mut simulation = Self {
            outcomes: vec![Outcome::default(); jobs.len()],
            numbers,
            scheduler: Scheduler::new(capacity),
            events: BTreeMap::new(),
            scheduled: 0,
            active: HashMap::new(),
            most_threads: 0,
            promised: HashMap::new(),
            jobs,
        };
        for number in 0..simulation.jobs.len() {
            simulation.at(simulation.jobs[number].arrives, Event::Arrives(number));
        }
        simulation
    }

    fn at(&mut self, seconds: f64, event: Event) {
        self.scheduled += 1;
        self.events.insert(((seconds * 1e6) as u64, self.scheduled), event);
    }

    fn run(mut self) -> Self {
        while let Some(((micros, _), event)) = self.events.pop_first() {
            let now = micros as f64 * 1e-6;
            match event {
                Event::Arrives(number) => self.scheduler.add(self.jobs[number].job.clone()),
                Event::Prepared(number) => self.is_prepared(number, now),
                Event::Ends(number) => self.end(number, now),
            }
            self.decide(now);
        }
        self
    }

    fn is_prepared(&mut self, number: usize, now: f64) {
        self.outcomes[number].preparations += 1;
        let Planned { job, demand, fails_in_preparation, .. } = self.jobs[number].clone();
        if fails_in_preparation {
            self.end(number, now);
        } else if self.scheduler.prepared(&job.id, demand) {
            self.train(number, now);
        } else {
            self.active.remove(&number);
        }
    }

    fn train(&mut self, number: usize, now: f64) {
        let Planned { job, demand, training_seconds, .. } = self.jobs[number].clone();
        let end = now + training_seconds;
        self.active.insert(number, (demand, job.expected_seconds.map(|_| end)));
        assert!(self.outcomes[number].started.replace(now).is_none(), "{} starts twice", job.id);
        self.at(end, Event::Ends(number));
    }

    fn end(&mut self, number: usize, now: f64) {
        assert!(self.outcomes[number].ended.replace(now).is_none());
        self.active.remove(&number);
        self.scheduler.remove(&self.jobs[number].job.id);
    }

    fn decide(&mut self, now: f64) {
        let remaining: HashMap<_, _> =
            self.active.iter().map(|(&number, (_, end))| (number, end.map(|end| end - now))).collect();
        let numbers = &self.numbers;
        self.scheduler.expect(|id| remaining.get(&numbers[id]).copied().flatten());
        let Decision { starts, waits } = self.scheduler.decide(now);
        for (id, _) in &waits {
            assert!(!self.active.contains_key(&self.numbers[id]), "{id} waits and is active");
        }
        for Start { id, is_ahead } in starts {
            let number = self.numbers[&id];
            let Planned { job, demand, preparation_seconds, .. } = self.jobs[number].clone();
            let is_prepared = self.outcomes[number].preparations > 0;
            if !is_ahead {
                let known = if is_prepared { demand } else { job.demand };
                assert!(self.active.insert(number, (known, None)).is_none(), "{id} starts twice");
            }
            if is_prepared && !is_ahead {
                self.train(number, now);
            } else {
                assert_eq!(self.outcomes[number].preparations, 0, "{id} is prepared twice");
                self.at(now + preparation_seconds, Event::Prepared(number));
            }
        }
        self.check();
        if let Some((first, _)) = waits.first() {
            let number = self.numbers[first];
            let start = self.start_without_others(number, now);
            let promised = self.promised.entry(number).or_insert(f64::INFINITY);
            *promised = promised.min(start);
        }
    }

    /// When a job starts if active jobs end as expected and no other job starts.
    fn start_without_others(&self, number: usize, now: f64) -> f64 {
        let demand = &self.jobs[number].job.demand;
        let mut ends: Vec<_> = self.active.values().map(|(_, end)| end.unwrap_or(f64::INFINITY)).collect();
        ends.sort_by(f64::total_cmp);
        let fits_at = |time: f64| {
            let left = self.active.values().filter(|(_, end)| end.unwrap_or(f64::INFINITY) > time);
            let (mut used_bytes, mut used_threads) = (demand.memory_bytes, demand.threads.unwrap());
            for (of_other, _) in left {
                used_threads += of_other.threads.unwrap();
                used_bytes += of_other.memory_bytes;
                if !of_other.gpus.numbers().is_disjoint(demand.gpus.numbers()) {
                    return false;
                }
            }
            used_threads <= HOST.threads && used_bytes <= HOST.memory_bytes
        };
        ends.into_iter().find(|&end| fits_at(end)).unwrap_or(now)
    }

    /// Checks that active jobs fit.
    fn check(&mut self) {
        let capacity = self.scheduler.capacity();
        let (mut used_bytes, mut used_threads) = (0, 0);
        let (mut gpus, mut of_user) = (BTreeSet::new(), BTreeMap::new());
        for (&number, (demand, _)) in &self.active {
            used_bytes += demand.memory_bytes;
            used_threads += demand.threads.unwrap();
            *of_user.entry(self.jobs[number].job.user).or_insert(0) += 1;
            for &gpu in demand.gpus.numbers() {
                assert!(gpus.insert(gpu), "two jobs on GPU {gpu}");
            }
        }
        assert!(used_bytes <= capacity.memory_bytes && used_threads <= capacity.threads);
        assert!(of_user.values().all(|&jobs| jobs <= capacity.max_jobs_per_user.unwrap_or(usize::MAX)));
        self.most_threads = self.most_threads.max(used_threads);
    }

    /// The mean time from arrival to start, of some jobs.
    fn mean_wait(&self, selects: impl Fn(&Planned) -> bool) -> f64 {
        let waits: Vec<_> = self.jobs.iter().zip(&self.outcomes).filter(|(job, _)| selects(job)).collect();
        let waits = waits.iter().filter_map(|(job, outcome)| Some(outcome.started? - job.arrives));
        let (count, sum) = waits.fold((0_u32, 0.0), |(count, sum), wait| (count + 1, sum + wait));
        assert!(count > 0);
        sum / f64::from(count)
    }
}

#[test]
fn a_day_of_ten_thousand_jobs_ends_with_each_run_once() {
    for seed in [1, 2] {
        let day = Simulation::new(day(seed), HOST).run();
        let failed = day.jobs.iter().filter(|job| job.fails_in_preparation).count();
        assert!(failed > 100, "{failed}");
        for (job, outcome) in day.jobs.iter().zip(&day.outcomes) {
            let Outcome { started, ended, preparations } = outcome;
            assert!(ended.is_some() && *preparations == 1, "{}: {outcome:?}", job.job.id);
            assert_eq!(started.is_some(), !job.fails_in_preparation, "{}: {outcome:?}", job.job.id);
        }
        assert_eq!(day.scheduler.places.len(), 0);
        assert_eq!(day.most_threads, HOST.threads, "the host was full at some time");
        let urgent = day.mean_wait(|job| job.job.priority > 0);
        let usual = day.mean_wait(|job| job.job.priority == 0);
        assert!(urgent < usual / 2.0, "urgent jobs wait {urgent} s, others {usual} s");
        let busiest = day.mean_wait(|job| job.job.user == 0);
        let others = day.mean_wait(|job| job.job.user != 0);
        assert!(others < busiest, "the busiest user waits {busiest} s, others {others} s");
    }
}

#[test]
fn the_first_job_is_never_delayed_by_later_ones() {
    let known = |mut planned: Planned| {
        planned.job = Waiting {
            user: 1,
            priority: 0,
            demand: planned.demand.clone(),
            is_prepared: true,
            expected_seconds: Some(planned.training_seconds),
            ..planned.job
        };
        planned.fails_in_preparation = false;
        planned
    };
    let jobs = day(3).into_iter().map(known).collect();
    let mut simulation = Simulation::new(jobs, Capacity { max_jobs_per_user: None, ..HOST });
    for outcome in &mut simulation.outcomes {
        outcome.preparations = 1;
    }
    let day = simulation.run();
    assert!(day.promised.len() > 100, "{}", day.promised.len());
    let mut overtaken = 0;
    for (&number, &promised) in &day.promised {
        let started = day.outcomes[number].started.unwrap();
        assert!(
            started <= promised + 1e-3,
            "{} started at {started}, after {promised}",
            day.jobs[number].job.id
        );
        let later = &day.outcomes[number + 1..];
        overtaken +=
            usize::from(later.iter().any(|later| later.started.is_some_and(|other| other < started)));
    }
    assert!(overtaken > 50, "later jobs fill gaps: {overtaken}");
}
