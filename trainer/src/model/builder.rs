//! Builds models: resolves features by name, creates layers, and rejects invalid settings.

use millstream_backend::{Activation, Device, Float, IdColumn, Lookup, PartRows, Sequence, WorkspaceUse};
use millstream_batch::BatchSchema;

use crate::init::Init;
use crate::layers::{Attention, Cross, Embedding, Linear, Mlp, Tables, WholeTables, linear_weights};
use crate::model::batch_gradient::BatchGradient;
use crate::model::din::SequenceFeatures;
use crate::model::embeddings::{EmbeddingTable, EmbeddingTables};
use crate::model::error::ModelError;
use crate::model::features::{Features, IdFeatureColumn};
use crate::optimizer::Optimizer;
use crate::parameter::ParameterSpec;
use crate::pass::BufferSpec;
use crate::spec::{
    AttentionSpec, CrossSpec, EmbeddingSpec, HiddenLayerSpec, OptimizerSpec, Pooling, SequenceSpec,
    TrainingSpec,
};

/// Builds the parts of one model on a device, for batches of a schema.
pub(super) struct Builder<'a, D: Device> {
    pub(super) device: &'a D,
    schema: &'a BatchSchema,
    /// The most rows of a global batch, of which `schema` has this worker's part.
    global_rows: usize,
    /// The most rows of a part if all parts have equally many.
    even_rows: usize,
    /// Number of logits per row.
    outputs: usize,
    /// The dimensions of activations.
    buffers: BufferSpec,
    /// The format of embeddings' weights.
    of_tables: Float,
    id_columns: Vec<Vec<IdColumn>>,
    /// The number of parts that every batch is cut into, if workers exchange gradients.
    exchanged_parts: Option<usize>,
    /// Whether devices that are connected gather the rows of all workers' tables.
    gathers_rows: bool,
    /// The format in which they do.
    gathered_float: Float,
    /// The most numbers that the rows of all workers' tables have.
    row_numbers: u64,
    /// The most numbers that the rows of all tables of a part have.
    part_row_numbers: u64,
    /// The numbers of tables that workers sum as a whole.
    whole_numbers: usize,
    /// The most numbers that workers sum in the middle of a pass.
    summed_numbers: u64,
}

impl<'a, D: Device> Builder<'a, D> {
    /// A builder for batches of `schema`, which are parts of global batches of `global_rows` rows. At most the rows of equal
    /// parts pass at once; with micro-batches, at most `micro_batch_rows`.
    pub(super) fn new(
        device: &'a D,
        schema: &'a BatchSchema,
        global_rows: u32,
        training: &TrainingSpec,
    ) -> Self {
        let even_rows = training.even_rows(global_rows);
        let rows = training.micro_batch_rows.unwrap_or(even_rows).clamp(1, even_rows.max(1)) as usize;
        let buffers =
            BufferSpec { rows, float: training.precision.activations(), ranks: training.ranks() as usize };
        let outputs = training.outputs(schema.label_count());
        let of_tables = training.embedding_precision.tables();
        let exchanged_parts = training.exchanges().then_some(training.parts() as usize);
        Self {
            device,
            schema,
            global_rows: global_rows as usize,
            even_rows: even_rows as usize,
            outputs,
            buffers,
            of_tables,
            id_columns: Vec::new(),
            exchanged_parts,
            gathers_rows: training.may_sum_on_devices(),
            gathered_float: training.gradient_precision.gradients(),
            row_numbers: 0,
            part_row_numbers: 0,
            whole_numbers: 0,
            summed_numbers: 0,
        }
    }

    /// The id columns that are looked up in each table built so far; each group once.
    pub(super) fn id_columns(mut self) -> Vec<Vec<IdColumn>> {
        self.id_columns.sort();
        self.id_columns.dedup();
        self.id_columns
    }

    /// The most numbers that the rows of all workers' tables have: gradients and ids.
    pub(super) fn row_numbers(&self) -> u64 {
        self.row_numbers
    }

    /// The most numbers that the rows of all tables of a part have: gradients and ids.
    pub(super) fn part_row_numbers(&self) -> u64 {
        self.part_row_numbers
    }

    /// The numbers of tables that workers sum as a whole.
    pub(super) fn whole_numbers(&self) -> usize {
        self.whole_numbers
    }

    /// The most numbers that workers sum in the middle of a pass.
    pub(super) fn summed_numbers(&self) -> u64 {
        self.summed_numbers
    }

    /// Allocates `columns` columns of the rows of all workers, which they sum; `None` if there is one worker.
    pub(super) fn global_matrix(&mut self, columns: usize) -> Option<D::Matrix> {
        let rows = self.global_rows()?;
        self.summed_numbers = self.summed_numbers.max((rows as u64).saturating_mul(columns as u64));
        Some(self.device.matrix(rows, columns))
    }

    /// The dimensions of activations.
    pub(super) fn buffers(&self) -> BufferSpec {
        self.buffers
    }

    /// The most rows of a global batch, of which the workers have parts, if they pass them through the model together.
    pub(super) fn global_rows(&self) -> Option<usize> {
        (self.buffers.ranks > 1).then_some(self.global_rows)
    }

    /// The most rows of this worker's part, if workers pass their parts through the model together and may need several passes.
    pub(super) fn rows_of_passes(&self) -> Option<usize> {
        let rows = self.schema.rows as usize;
        self.global_rows().filter(|_| self.buffers.rows < rows).map(|_| rows)
    }

    /// Number of labels per row.
    pub(super) fn label_count(&self) -> usize {
        self.schema.label_count()
    }

    /// The name of each label; empty for an unnamed label.
    pub(super) fn labels(&self) -> Vec<&'a str> {
        self.schema.label_names()
    }

    /// Number of logits per row: one per label, or one per class of the single label.
    pub(super) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Allocates activations of `columns` columns.
    pub(super) fn matrix(&self, columns: usize) -> D::Matrix {
        self.buffers.matrix(self.device, columns)
    }

    /// Allocates the logits of a pass, or a buffer of their shape.
    pub(super) fn logits(&self) -> D::Matrix {
        self.buffers.fp32(self.device, self.outputs)
    }

    /// Allocates the gradient with respect to activations of `columns` columns, per pass and for the whole
    /// batch.
    pub(super) fn batch_gradient(&self, columns: usize) -> BatchGradient<D> {
        BatchGradient::new(self.device, self.buffers, self.schema.rows as usize, columns)
    }

    /// The same for the logits.
    pub(super) fn logits_grad(&self) -> BatchGradient<D> {
        let buffers = BufferSpec { float: Float::F32, ..self.buffers };
        BatchGradient::new(self.device, buffers, self.schema.rows as usize, self.outputs)
    }

    /// The features in the list at `key`.
    pub(super) fn features(&self, key: &str, names: &[String]) -> Result<Features, ModelError> {
        Features::resolve(key, names, self.schema)
    }

    /// The same; the list must not be empty.
    pub(super) fn some_features(&self, key: &str, names: &[String]) -> Result<Features, ModelError> {
        if names.is_empty() {
            let expected = "at least one feature is needed";
            return Err(ModelError::Empty { key: key.to_owned(), expected });
        }
        self.features(key, names)
    }

    /// An optimizer of embeddings.
    pub(super) fn embedding_optimizer(
        &self,
        key: &str,
        spec: &OptimizerSpec,
    ) -> Result<Optimizer, ModelError> {
        Optimizer::new(spec).map_err(|source| ModelError::Optimizer { key: key.to_owned(), source })
    }

    /// An optimizer of layers, or of layers and embeddings.
    pub(super) fn optimizer(&self, key: &str, spec: &OptimizerSpec) -> Result<Optimizer, ModelError> {
        let optimizer = self.embedding_optimizer(key, spec)?;
        if optimizer.is_row_wise() { Err(ModelError::RowWise { key: key.to_owned() }) } else { Ok(optimizer) }
    }

    /// A linear model over `features`; `name` is the prefix of its parameters' names. Each feature has
    /// separate weights, in fp32 because they are added to logits.
    pub(super) fn linear(
        &mut self,
        name: &str,
        features: &Features,
        optimizer: Optimizer,
    ) -> Result<Linear<D>, ModelError> {
        let table = |feature: &IdFeatureColumn| {
            let name = format!("{name}.ids.{}", feature.name);
            linear_weights(name, feature.cardinality, self.outputs, optimizer)
        };
        let tables = features.ids.iter().map(table).collect::<Result<Vec<_>, _>>()?;
        let pooling = millstream_backend::Pooling::Sum;
        let lookups = features.ids.iter().enumerate();
        let lookups = lookups.map(|(table, feature)| (feature.column, table, pooling));
        let tables = self.tables(lookups.collect(), tables, optimizer)?;
        let (rows, dense, outputs) = (self.buffers.rows, features.dense.len(), self.outputs);
        self.reserve_workspace_lookups(&tables, dense);
        self.device.reserve_workspace(&WorkspaceUse::Linear { rows, dense, outputs });
        Ok(Linear::new(self.device, name, tables, features.dense.clone(), outputs, optimizer)?)
    }

    /// Embeddings of the id features, in tables named `PREFIXembedding.TABLE`, followed by the numeric
    /// features. Their keys in the job begin with `model.PREFIX`.
    pub(super) fn embedding(
        &mut self,
        prefix: &str,
        spec: &EmbeddingSpec,
        features: Features,
    ) -> Result<Embedding<D>, ModelError> {
        self.embedding_beside(prefix, spec, features, 0)
    }

    /// The same with tables named `embedding.TABLE`, where the last `histories` id features have a vector for each value.
    pub(super) fn embedding_of_sequences(
        &mut self,
        spec: &EmbeddingSpec,
        features: Features,
        histories: usize,
    ) -> Result<Embedding<D>, ModelError> {
        self.embedding_beside("", spec, features, histories)
    }

    /// Embeddings of pooled id features and of as many `histories` after them.
    fn embedding_beside(
        &mut self,
        prefix: &str,
        spec: &EmbeddingSpec,
        features: Features,
        histories: usize,
    ) -> Result<Embedding<D>, ModelError> {
        let resolved = EmbeddingTables::resolve(prefix, spec, &features.ids)?;
        resolved.check_sharing(prefix, self.schema.rows)?;
        let EmbeddingTables { tables, lookups } = resolved;
        let key = format!("model.{prefix}embedding_optimizer");
        let optimizer = self.embedding_optimizer(&key, &spec.optimizer)?;
        let table = |table: &EmbeddingTable| {
            let (name, shape) = (format!("{prefix}embedding.{}", table.name), (table.rows, table.width));
            let init = Init::embedding(table.init, table.rows);
            let spec = ParameterSpec::matrix(name, shape, init, optimizer)?;
            Ok::<_, ModelError>(ParameterSpec { float: self.of_tables, ..spec })
        };
        let tables = tables.iter().map(table).collect::<Result<Vec<_>, _>>()?;
        let pooled = features.ids.len() - histories;
        self.refuse_weighted_maxima(prefix, spec, &features.ids[..pooled])?;
        let lookups = features.ids.iter().zip(lookups).enumerate().map(|(place, (feature, lookup))| {
            let pooling = match (lookup.pooling, feature.column) {
                (_, IdColumn::Ragged(column)) if place >= pooled => {
                    millstream_backend::Pooling::Unpooled(self.schema.ragged[column].maximum)
                }
                (Pooling::Sum, _) => millstream_backend::Pooling::Sum,
                (Pooling::Mean, _) => millstream_backend::Pooling::Mean,
                (Pooling::SqrtN, _) => millstream_backend::Pooling::SqrtN,
                (Pooling::Max, _) => millstream_backend::Pooling::Max,
            };
            (feature.column, lookup.table, pooling)
        });
        let tables = self.tables(lookups.collect(), tables, optimizer)?;
        self.reserve_workspace_lookups(&tables, features.dense.len());
        Ok(Embedding { tables, dense: features.dense })
    }

    /// Checks that pooled `features` with weights are not pooled by their maximum.
    fn refuse_weighted_maxima(
        &self,
        prefix: &str,
        spec: &EmbeddingSpec,
        features: &[IdFeatureColumn],
    ) -> Result<(), ModelError> {
        for IdFeatureColumn { name, column, .. } in features {
            let IdColumn::Ragged(column) = *column else { continue };
            if let (Pooling::Max, table) = spec.pooling_of(name)
                && self.schema.ragged[column].weighted
            {
                let of_table = table.map(|table| format!("embeddings.{}.", table.name));
                let key = format!("model.{prefix}{}pooling", of_table.unwrap_or_default());
                return Err(ModelError::WeightedMaxima { key, feature: name.clone() });
            }
        }
        Ok(())
    }

    /// The numeric features only.
    pub(super) fn numbers(&self, dense: Vec<usize>, optimizer: Optimizer) -> Embedding<D> {
        let tables = Tables::new(self.device, 0, Vec::new(), Vec::new(), optimizer, None);
        self.reserve_workspace_lookups(&tables, dense.len());
        Embedding { tables, dense }
    }

    /// Reserves the workspace of lookups in `tables` next to `dense` dense columns.
    fn reserve_workspace_lookups(&self, tables: &Tables<D>, dense: usize) {
        let (schema, lookups, shapes) = (self.schema, &tables.lookups, &tables.shapes());
        self.device.reserve_workspace(&WorkspaceUse::Lookups { schema, lookups, shapes, dense });
    }

    /// An embedding for `model`, which needs vectors of one width; returns that width, too.
    pub(super) fn embedding_of_one_width(
        &mut self,
        model: &'static str,
        spec: &EmbeddingSpec,
        features: Features,
    ) -> Result<(Embedding<D>, usize), ModelError> {
        let width = EmbeddingTables::resolve("", spec, &features.ids)?.one_width(model)?;
        Ok((self.embedding("", spec, features)?, width))
    }

    /// Hidden layers with the widths at `key`, then an output layer with activation `last`.
    pub(super) fn mlp(
        &self,
        name: &str,
        inputs: usize,
        (key, hidden, hidden_layer): (&str, &[u32], &HiddenLayerSpec),
        last: (usize, Activation),
        optimizer: Optimizer,
    ) -> Result<Mlp<D>, ModelError> {
        if hidden.contains(&0) {
            let expected = "a hidden layer has at least one output";
            return Err(ModelError::Empty { key: key.to_owned(), expected });
        }
        Ok(Mlp::new(self.device, self.buffers, name, inputs, (hidden, hidden_layer), last, optimizer)?)
    }

    /// The features of a model with `sequences`.
    pub(super) fn sequences(
        &self,
        features: Features,
        sequences: &[SequenceSpec],
        embedding: &EmbeddingSpec,
    ) -> Result<SequenceFeatures, ModelError> {
        SequenceFeatures::resolve(features, sequences, embedding, self.schema)
    }

    /// The activation unit of a sequence, whose sum has its first column there. Its layers have the initialization of
    /// `hidden_layer`, but neither dropout nor normalization.
    pub(super) fn attention(
        &self,
        name: &str,
        place: (Sequence, usize),
        spec: &AttentionSpec,
        hidden_layer: &HiddenLayerSpec,
        optimizer: Optimizer,
    ) -> Result<Attention<D>, ModelError> {
        if spec.hidden.contains(&0) {
            let expected = "a hidden layer has at least one output";
            return Err(ModelError::Empty { key: "model.attention.hidden".to_owned(), expected });
        }
        let options = HiddenLayerSpec { init: hidden_layer.init, ..HiddenLayerSpec::default() };
        let hidden = (spec.hidden.as_slice(), &options);
        Ok(Attention::new(self.device, self.buffers, name, place, hidden, optimizer)?)
    }

    /// Cross layers over `width` columns.
    pub(super) fn cross(
        &self,
        width: usize,
        spec: &CrossSpec,
        optimizer: Optimizer,
    ) -> Result<Cross<D>, ModelError> {
        if spec.layers == 0 {
            let expected = "at least one cross layer is needed";
            return Err(ModelError::Empty { key: "model.cross_layers".to_owned(), expected });
        }
        if spec.rank == Some(0) {
            let expected = "a rank is at least 1";
            return Err(ModelError::Empty { key: "model.cross_rank".to_owned(), expected });
        }
        Ok(Cross::new(self.device, self.buffers, width, spec, optimizer)?)
    }

    /// Creates tables of `specs`. The lookups give the table and the pooling of each id column, in order.
    fn tables(
        &mut self,
        lookups: Vec<(IdColumn, usize, millstream_backend::Pooling)>,
        specs: Vec<ParameterSpec>,
        optimizer: Optimizer,
    ) -> Result<Tables<D>, ModelError> {
        let mut first = 0;
        let lookups = lookups.into_iter().map(|(column, table, pooling)| {
            let lookup = Lookup { column, pooling, table, first };
            first += lookup.columns(specs[table].columns);
            lookup
        });
        let mut lookups: Vec<Lookup> = lookups.collect();
        lookups.sort_by_key(|lookup| lookup.table);
        let groups = lookups.chunk_by(|one, next| one.table == next.table);
        self.id_columns.extend(groups.map(|group| group.iter().map(|lookup| lookup.column).collect()));
        let merged = self.exchanged_parts.map(|parts| self.merged_rows(parts, &lookups, &specs));
        Ok(Tables::new(self.device, self.schema.rows as usize, lookups, specs, optimizer, merged))
    }

    /// Room for the rows of the tables `specs` that all `parts` of a batch touch, and which tables are summed as a whole.
    fn merged_rows(
        &mut self,
        parts: usize,
        lookups: &[Lookup],
        specs: &[ParameterSpec],
    ) -> (D::MergedRows, Option<WholeTables>) {
        let shapes: Vec<_> = specs.iter().map(ParameterSpec::table_shape).collect();
        let schema = self.schema;
        self.device.reserve_workspace(&WorkspaceUse::RowSums { schema, lookups, shapes: &shapes });
        let ids = |rows: usize, lookup: &Lookup| match lookup.column {
            IdColumn::Single(_) => rows,
            IdColumn::Ragged(feature) => rows.saturating_mul(schema.ragged[feature].maximum as usize),
        };
        let of_tables = || lookups.chunk_by(|one, next| one.table == next.table);
        let of_rows = |rows: usize| -> Vec<usize> {
            let ids = |lookup| ids(rows, lookup);
            of_tables().map(|lookups| lookups.iter().map(ids).fold(0, usize::saturating_add)).collect()
        };
        let (of_part, even_ids) = (&of_rows(schema.rows as usize)[..], &of_rows(self.even_rows)[..]);
        let (are_gathered, float) = (self.gathers_rows, self.gathered_float);
        let rows = PartRows { parts, ids: of_part, even_ids, are_gathered, float };
        let are_whole = even_ids.iter().zip(&shapes).map(|(&ids, shape)| rows.sums_whole(shape, ids));
        let are_whole: Vec<bool> = are_whole.collect();
        for (((&ids, &even_ids), shape), &is_whole) in
            of_part.iter().zip(even_ids).zip(&shapes).zip(&are_whole)
        {
            let of_row = 1 + shape.width as u64;
            // A table that is summed becomes rows once, which are merged.
            let of_parts = even_ids.min(shape.rows).saturating_mul(parts);
            let rows = if is_whole { shape.rows } else { of_parts } as u64;
            self.row_numbers = self.row_numbers.saturating_add(rows.saturating_mul(of_row));
            let own = (ids.min(shape.rows) as u64).saturating_mul(of_row);
            self.part_row_numbers = self.part_row_numbers.saturating_add(own);
        }
        let whole = WholeTables::of(&shapes, &are_whole);
        self.whole_numbers += whole.as_ref().map_or(0, WholeTables::numbers);
        self.device.reserve_workspace(&WorkspaceUse::MergedRows { shapes: &shapes, rows });
        (self.device.merged_rows(&shapes, rows), whole)
    }
}
