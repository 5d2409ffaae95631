//! The native part of the Python package `millstream`: attaches to feeds ([`client`]), hosts them ([`host`]), and gives their
//! memory to arrays of other libraries without a copy ([`array`]).
//!
//! It uses the stable ABI of Python 3.10, so that one build serves all later versions.

mod array;
mod client;
mod errors;
mod held;
mod host;

use pyo3::prelude::*;

/// The module `millstream._native`.
#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("FeedError", module.py().get_type::<errors::FeedError>())?;
    module.add("SpecError", module.py().get_type::<errors::SpecError>())?;
    module.add("RankLost", module.py().get_type::<errors::RankLost>())?;
    module.add_class::<array::Array>()?;
    module.add_class::<client::Batch>()?;
    module.add_class::<client::Client>()?;
    module.add_class::<client::Evaluation>()?;
    module.add_class::<client::Position>()?;
    module.add_function(wrap_pyfunction!(host::resolve, module)?)?;
    module.add_function(wrap_pyfunction!(host::parse, module)?)?;
    module.add_function(wrap_pyfunction!(host::with_drop_last, module)?)?;
    module.add_function(wrap_pyfunction!(host::listen, module)?)?;
    module.add_function(wrap_pyfunction!(host::serve, module)?)?;
    Ok(())
}
