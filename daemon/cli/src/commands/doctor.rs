//! `millstream doctor`: checks a host and what jobs need of it.

use crate::arguments::Doctor;
use crate::context::Context;
use crate::doctor::Diagnosis;
use crate::failure::Failure;

pub(crate) fn run(arguments: &Doctor, context: &Context) -> Result<(), Failure> {
    Diagnosis::new(context, arguments.quick)?.run(&arguments.targets)
}
