//! Normalisation, as kernels see it.

/// What numbers are normalised over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Each row over its columns: Ba, Kiros and Hinton, "Layer Normalization", 2016, section 3.
    Row,
    /// Each column over the rows: Ioffe and Szegedy, "Batch Normalization", 2015, Algorithm 1.
    Column,
}

/// `y = activation(scale * (x - mean) / sqrt(variance + epsilon) + shift)`
///
/// Means and variances, of the population, are `[B, 1]` for [`Axis::Row`] and `[1, N]` for [`Axis::Column`].
pub struct Normalization<'a, M> {
    /// What over.
    pub axis: Axis,
    /// `[1, N]`
    pub scale: &'a M,
    /// `[1, N]`
    pub shift: &'a M,
    /// Keeps the quotient finite.
    pub epsilon: f64,
    /// Whether only what is above 0 is kept.
    pub is_rectified: bool,
}

/// What the backward pass of a normalisation reads, all of the same forward pass.
pub struct Normalized<'a, M> {
    /// Its input, `[B, N]`.
    pub input: &'a M,
    /// Its means.
    pub mean: &'a M,
    /// Its variances.
    pub variance: &'a M,
    /// What it gave, `[B, N]`.
    pub output: &'a M,
}
