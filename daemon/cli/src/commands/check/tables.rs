//! A plan as tables.

use millstream_daemon::plan::RowCount;
use millstream_worker::survey::{GpuSurvey, HostSurvey, LibrarySurvey};

use super::report::{
    AutoBatch, AutoBatchGpu, ContinuationReport, DataReport, FeatureReport, GpuMemory, HostUse,
    LearningRates, Report, WarmStart,
};
use crate::figures;
use crate::screen::output_width;
use crate::table::Table;

impl Report {
    pub(super) fn describe(&self) -> String {
        let bounded = self.parameters.bound;
        let note =
            if bounded { "\n<= upper bound; --learn reads the data for the exact number\n" } else { "" };
        format!(
            "job {}, seed {}\n\n{}{}\n{}{note}\n{}{}",
            self.name,
            self.seed,
            self.data_table(),
            self.source_table(),
            self.feature_table(),
            self.size_table(),
            self.warm_start_table(),
        )
    }

    fn warm_start_table(&self) -> String {
        let mut table = Table::default();
        if let Some(ContinuationReport { checkpoint, step, is_same_data }) = &self.continuation {
            table.row(["continues".to_owned(), checkpoint.to_string()]);
            table.row(["  from step", &figures::count(*step)]);
            table.row([
                "  data",
                if *is_same_data { "the same: its epochs count" } else { "other: from its start" },
            ]);
            return format!("\n{}", table.render());
        }
        let Some(WarmStart { checkpoint, whole, in_part, initialized, unused }) = &self.warm_start else {
            return String::new();
        };
        table.row(["warm start".to_owned(), checkpoint.to_string()]);
        let all = whole.len() + in_part.len() + initialized.len();
        table.row(["  carried over", &format!("{} of {all} parameters", whole.len())]);
        let in_part = in_part.iter().map(|name| ("  in part", name.clone()));
        let initialized = initialized.iter().map(|(name, why)| ("  initialized", format!("{name}: {why}")));
        let unused = unused.iter().map(|name| ("  unused", name.clone()));
        for (title, name) in in_part.chain(initialized).chain(unused) {
            table.row([title.to_owned(), name]);
        }
        format!("\n{}", table.render())
    }

    fn data_table(&self) -> String {
        let mut table = Table::with_titles(&["DATA", ">FILES", ">SPLITS", ">SIZE", ">ROWS"]);
        let DataReport { train, eval, .. } = self.data;
        // Of filtered data, the rows that pass; of records, an estimate unless they were read.
        let count = |RowCount { rows, is_estimate }| {
            format!("{}{}", if is_estimate { "~" } else { "" }, figures::count(rows))
        };
        let eval = eval.map(|eval| ("eval", eval, None));
        for (name, files, learned) in [("train", train, self.rows)].into_iter().chain(eval) {
            let known = files.rows.map(|rows| RowCount { rows, is_estimate: false });
            let estimate = files.estimated_rows.map(|rows| RowCount { rows, is_estimate: true });
            table.row([
                name.to_owned(),
                figures::count(files.files as u64),
                figures::count(files.splits as u64),
                figures::bytes(files.bytes),
                known.or(learned).or(estimate).map_or_else(|| "?".to_owned(), count),
            ]);
        }
        table.render()
    }

    /// The sources of mixed training data.
    fn source_table(&self) -> String {
        if self.data.sources.is_empty() {
            return String::new();
        }
        let mut table =
            Table::with_titles(&["SOURCE", ">WEIGHT", ">FILES", ">SIZE", ">ROWS", ">OF AN EPOCH"]);
        for source in &self.data.sources {
            let about = if source.share_is_estimate { "~" } else { "" };
            table.row([
                source.pattern.clone(),
                source.weight.to_string(),
                figures::count(source.files as u64),
                figures::bytes(source.bytes),
                source.rows.map_or_else(|| "?".to_owned(), figures::count),
                format!("{about}{}", figures::percent(source.share)),
            ]);
        }
        format!("\n{}", table.render())
    }

    fn feature_table(&self) -> String {
        let mut table = Table::with_titles(&["FEATURE", "KIND", "COLUMNS", ">IDS", ">VALUES", "USED BY"]);
        for feature in &self.features {
            let bound = if feature.bound { "<= " } else { "" };
            table.row([
                feature.name.clone(),
                feature.kind.to_owned(),
                feature.columns_and_weights(),
                feature.ids.map_or("-".to_owned(), |ids| format!("{bound}{}", figures::count(ids.into()))),
                feature.maximum.map_or("1".to_owned(), |maximum| format!("<= {maximum}")),
                feature.used_by.join(", "),
            ]);
        }
        table.fitted(output_width(), &["VALUES", "COLUMNS"]).render()
    }

    fn size_table(&self) -> String {
        let Self { batch, parameters, .. } = self;
        let mut table = Table::default();
        let shape = format!(
            "{}: {} dense, {} single-id, {} multi-valued; {}",
            figures::counted(batch.rows.into(), "row"),
            batch.dense,
            batch.ids,
            batch.ragged,
            figures::bytes(batch.slot_bytes)
        );
        table.row(["batch".to_owned(), shape]);
        self.describe_automatic_batch(&mut table);
        table.row(["steps".to_owned(), self.steps()]);
        let precision = match self.embedding_precision {
            of_tables if of_tables == self.precision => of_tables.to_owned(),
            of_tables => format!("{}, embeddings {of_tables}", self.precision),
        };
        table.row(["precision".to_owned(), precision]);
        if self.workers > 1 {
            let part = figures::counted(batch.rows.div_ceil(self.workers).into(), "row");
            table.row([
                "workers".to_owned(),
                format!("{} on this host, each with {part} of a batch", self.workers),
            ]);
        }
        table.row(["device".to_owned(), self.device.clone()]);
        for (name, description) in self.host.iter().flat_map(describe_host) {
            table.row([format!("  {name}"), description]);
        }
        self.describe_learning_rates(&mut table);
        table.row(["parameters", &format!("{}{}", self.bound(), figures::count(parameters.total))]);
        for (part, count) in &parameters.parts {
            table.row([format!("  {part}"), figures::count(*count)]);
        }
        self.describe_memory(&mut table);
        table.render()
    }

    /// What precedes upper bounds.
    fn bound(&self) -> &'static str {
        if self.parameters.bound { "at most " } else { "" }
    }

    fn describe_automatic_batch(&self, table: &mut Table) {
        let Some(auto) = &self.auto_batch else { return };
        let bound = self.bound();
        let AutoBatch { needed_bytes, process_bytes, limit_bytes, limit_of, gpu, why_not_more } = auto;
        let [needed, process, limit] =
            [needed_bytes, process_bytes, limit_bytes].map(|&bytes| figures::bytes(bytes));
        let processes = if self.workers == 1 { "process" } else { "processes" };
        let fits = format!("{bound}{needed} ({process} for the worker {processes}) of {limit}: {limit_of}");
        table.row(["  auto: needs".to_owned(), fits]);
        if let Some(AutoBatchGpu { needed_bytes, limit_bytes, limit_of }) = gpu {
            let [needed, limit] = [needed_bytes, limit_bytes].map(|&bytes| figures::bytes(bytes));
            let gpus = if self.workers == 1 { "  on the GPU" } else { "  on each GPU" };
            table.row([gpus, &format!("{bound}{needed} of {limit}: {limit_of}")]);
        }
        if let Some(why) = why_not_more {
            table.row(["  limited by".to_owned(), why.clone()]);
        }
    }

    /// The number of steps, in all and per epoch.
    fn steps(&self) -> String {
        let epochs = u64::from(self.epochs);
        match self.steps_per_epoch {
            Some(steps) => {
                let about = if self.steps_are_estimated { "about " } else { "" };
                let total = figures::count(steps.saturating_mul(epochs));
                let epochs = figures::counted(epochs, "epoch");
                format!("{about}{total}: {epochs} of {about}{}", figures::count(steps))
            }
            None => format!(
                "{}; the number of rows is unknown until the first has ended",
                figures::counted(epochs, "epoch")
            ),
        }
    }

    fn describe_learning_rates(&self, table: &mut Table) {
        let LearningRates { factor, reference, rule, optimizers } = &self.learning_rates;
        if let (Some(factor), Some(reference), Some(rule)) = (factor, reference, rule) {
            let reference = figures::count((*reference).into());
            let scaled = format!("{factor:.4} times those for {reference} rows ({rule})");
            table.row(["learning rates".to_owned(), scaled]);
            for (optimizer, rate) in optimizers {
                table.row([format!("  {optimizer}"), rate.to_string()]);
            }
        }
    }

    fn describe_memory(&self, table: &mut Table) {
        let (memory, bound) = (&self.memory, self.bound());
        let parts = [
            ("  ring", memory.ring_bytes),
            ("  shuffle pool", memory.pool_bytes),
            ("  reading", memory.reading_bytes),
            ("  read-ahead, at most", memory.ahead_bytes),
            ("  other", memory.fixed_bytes),
        ];
        let evaluations = (memory.evaluation_bytes > 0).then_some(("  evaluations", memory.evaluation_bytes));
        let parts = parts.into_iter().chain(evaluations);
        let ingest = figures::bytes(parts.clone().map(|(_, bytes)| bytes).sum());
        table.row(["ingest memory", &format!("{ingest} of {}", figures::bytes(memory.budget_bytes))]);
        for (part, bytes) in parts {
            table.row([part, &figures::bytes(bytes)]);
        }
        let worker = memory.model_bytes + memory.workspace_bytes + memory.checkpoint_bytes;
        let of_all = if self.workers > 1 { " together" } else { "" };
        table.row(["worker memory", &format!("{bound}{}{of_all}", figures::bytes(worker))]);
        if memory.gpu.is_none() {
            table.row(["  model and optimizer", &figures::bytes(memory.model_bytes)]);
        }
        table.row(["  workspace", &figures::bytes(memory.workspace_bytes)]);
        table.row(["  checkpoint copies", &figures::bytes(memory.checkpoint_bytes)]);
        let HostUse { needed_bytes, available_bytes, .. } = memory.host;
        let available = available_bytes.map(|bytes| format!(" of {} available now", figures::bytes(bytes)));
        let needed = format!("{bound}{}{}", figures::bytes(needed_bytes), available.unwrap_or_default());
        table.row(["host memory, at least".to_owned(), needed]);
        if let Some(gpu) = &memory.gpu {
            gpu.describe(bound, table);
        }
    }
}

impl GpuMemory {
    /// `bound` precedes upper bounds.
    fn describe(&self, bound: &str, table: &mut Table) {
        let Self { numbers, model_bytes, workspace_bytes, memory_bytes, usable_bytes, fits, .. } = self;
        let mut used = format!("{bound}{}", figures::bytes(model_bytes.saturating_add(*workspace_bytes)));
        if let Some((usable, total)) = usable_bytes.zip(*memory_bytes) {
            used += &format!(" of {} usable ({} in total)", figures::bytes(usable), figures::bytes(total));
        }
        let title = match &numbers[..] {
            [only] => format!("GPU {only} memory"),
            several => {
                let numbers: Vec<_> = several.iter().map(u32::to_string).collect();
                format!("GPU {} memory, each", numbers.join(", "))
            }
        };
        table.row([title, used]);
        table.row(["  model and optimizer", &figures::bytes(*model_bytes)]);
        table.row(["  batch and workspace", &figures::bytes(*workspace_bytes)]);
        if *fits == Some(false) {
            table.row(["  does not fit".to_owned(), self.advice().to_owned()]);
        }
    }

    /// What to change if the job does not fit.
    fn advice(&self) -> &'static str {
        if self.usable_bytes.is_some_and(|usable| self.model_bytes >= usable) {
            "use smaller tables (fewer ids, a lower `embedding_dim`) or optimizers with less state"
        } else {
            "lower `data.batch_size`, or set `training.micro_batch_size`"
        }
    }
}

impl FeatureReport {
    fn columns_and_weights(&self) -> String {
        let columns = self.columns.join(" x ");
        self.weights.as_ref().map_or(columns.clone(), |weights| format!("{columns} by {weights}"))
    }
}

/// The GPUs, libraries and problems of a host: name and description.
fn describe_host(host: &HostSurvey) -> Vec<(String, String)> {
    let of_gpu = |gpu: &GpuSurvey| {
        let GpuSurvey { number, name, capability, multiprocessors, memory_bytes, opened: _ } = gpu;
        let memory = figures::bytes(*memory_bytes);
        let description =
            format!("{name}, compute capability {capability}, {multiprocessors} multiprocessors, {memory}");
        (format!("GPU {number}"), description)
    };
    let of_library = |found: &LibrarySurvey| {
        let LibrarySurvey { library, version, problem, for_several_gpus: _ } = found;
        (library.clone(), version.clone().or(problem.clone()).unwrap_or_default())
    };
    let of_problem = |problem: &String| ("GPUs".to_owned(), problem.clone());
    let problem = host.problem.iter().map(of_problem);
    host.gpus.iter().map(of_gpu).chain(problem).chain(host.libraries.iter().map(of_library)).collect()
}
