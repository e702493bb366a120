//! PROCTIME(): the time by the clock, as an attribute of rows.
//!
//! It has no value here: a restart would compute another one for the same row. It says that a window goes by the clock, or
//! that rows are ordered as they come, which those who plan these look for; what is left of it anywhere else is refused by
//! [`crate::calc`].

use crate::window::processing_type;
use arrow::datatypes::DataType;
use datafusion_common::{Result, exec_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use std::sync::Arc;

/// Its name.
pub(crate) const PROCTIME: &str = "proctime";

/// Volatile, so that no rule computes it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Proctime(Signature);

/// The function.
pub(super) fn udf() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::new_from_impl(Proctime(Signature::nullary(Volatility::Volatile))))
}

impl ScalarUDFImpl for Proctime {
    fn name(&self) -> &str {
        PROCTIME
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(processing_type())
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        exec_err!("PROCTIME() has no value")
    }
}
