//! The functions that queries may call.
//!
//! A scalar function of DataFusion's is offered only where it was compared with Flink's of that name and means the
//! same; all are immutable, so constant folding never fixes a clock or a random number in the plan (F3).

mod sum;

use crate::error::nearest;
use datafusion_expr::{AggregateUDF, ScalarUDF};
use std::collections::BTreeMap;
use std::sync::Arc;
use sum::Sum;

/// Scalar functions by the names users call them. Left out on purpose, since Flink means something else by the name:
/// CONCAT, GREATEST and LEAST (null handling), REGEXP_REPLACE (all matches), DATE_FORMAT and TO_TIMESTAMP (patterns).
#[rustfmt::skip]
const SCALAR: [&str; 40] = [
    "abs", "acos", "ascii", "asin", "atan", "atan2", "btrim", "ceil", "char_length", "character_length", "coalesce",
    "cos", "degrees", "exp", "floor", "ifnull", "initcap", "instr", "ln", "log10", "log2", "lower", "ltrim", "nullif",
    "pi", "power", "radians", "repeat", "replace", "reverse", "round", "rtrim", "sin", "sqrt", "strpos", "substr",
    "substring", "tan", "trim", "upper",
];

/// Functions of Flink that exist but not here, for a better message; with what to do instead where there is a way.
const LATER: [(&str, &str); 24] = [
    ("concat", ": write a || b"),
    ("concat_ws", ""),
    ("now", ""),
    ("current_timestamp", ""),
    ("current_date", ""),
    ("current_time", ""),
    ("localtime", ""),
    ("localtimestamp", ""),
    ("proctime", ""),
    ("rand", ""),
    ("random", ""),
    ("rand_integer", ""),
    ("uuid", ""),
    ("date_format", ""),
    ("to_timestamp", ""),
    ("to_timestamp_ltz", ""),
    ("to_date", ""),
    ("unix_timestamp", ""),
    ("from_unixtime", ""),
    ("split_index", ""),
    ("regexp_extract", ""),
    ("regexp_replace", ""),
    ("greatest", ""),
    ("least", ""),
];

/// What a name in a call stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FunctionKind {
    /// Row in, value out.
    Scalar,
    /// COUNT or SUM.
    Aggregate,
}

/// The functions by name.
#[derive(Debug)]
pub(crate) struct Functions {
    scalar: BTreeMap<String, Arc<ScalarUDF>>,
    aggregates: BTreeMap<String, Arc<AggregateUDF>>,
}

impl Functions {
    /// All that are supported.
    pub(crate) fn new() -> Self {
        let mut scalar = BTreeMap::new();
        for function in datafusion_functions::all_default_functions() {
            let names = std::iter::once(function.name()).chain(function.aliases().iter().map(String::as_str));
            for name in names.filter(|name| SCALAR.contains(name)) {
                scalar.insert(name.to_owned(), Arc::clone(&function));
            }
        }
        let count = datafusion_functions_aggregate::count::count_udaf();
        let aggregates = [count, Arc::new(AggregateUDF::from(Sum::new()))];
        let aggregates = aggregates.into_iter().map(|function| (function.name().to_owned(), function)).collect();
        Self { scalar, aggregates }
    }

    /// A scalar function by its name in small letters.
    pub(crate) fn scalar(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.scalar.get(name).cloned()
    }

    /// An aggregate function by its name in small letters.
    pub(crate) fn aggregate(&self, name: &str) -> Option<Arc<AggregateUDF>> {
        self.aggregates.get(name).cloned()
    }

    /// Names of all scalar functions.
    pub(crate) fn scalar_names(&self) -> Vec<String> {
        self.scalar.keys().cloned().collect()
    }

    /// Names of all aggregate functions.
    pub(crate) fn aggregate_names(&self) -> Vec<String> {
        self.aggregates.keys().cloned().collect()
    }

    /// What a name stands for.
    ///
    /// # Errors
    /// With the refusal and whether the function is known.
    pub(crate) fn kind(&self, name: &str) -> Result<FunctionKind, FunctionRefusal> {
        let small = name.to_lowercase();
        if self.aggregates.contains_key(&small) {
            return Ok(FunctionKind::Aggregate);
        }
        if self.scalar.contains_key(&small) {
            return Ok(FunctionKind::Scalar);
        }
        if let Some((_, advice)) = LATER.iter().find(|(later, _)| *later == small) {
            return Err(FunctionRefusal::Unsupported(format!("{} is not supported yet{advice}", name.to_uppercase())));
        }
        let is_known = known_elsewhere().any(|known| known == small);
        if is_known {
            return Err(FunctionRefusal::Unsupported(format!("{} is not supported yet", name.to_uppercase())));
        }
        let near = nearest(&small, self.scalar.keys().chain(self.aggregates.keys()).map(|name| name.to_uppercase()));
        Err(FunctionRefusal::Unknown(format!("function {} does not exist{near}", name.to_uppercase())))
    }
}

/// Why a function is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FunctionRefusal {
    /// It exists, but not here yet.
    Unsupported(String),
    /// It does not exist.
    Unknown(String),
}

/// Every function name that DataFusion knows.
fn known_elsewhere() -> impl Iterator<Item = String> {
    let scalar = datafusion_functions::all_default_functions().into_iter().flat_map(|function| {
        let aliases = function.aliases().to_vec();
        std::iter::once(function.name().to_owned()).chain(aliases)
    });
    let aggregates =
        datafusion_functions_aggregate::all_default_aggregate_functions().into_iter().flat_map(|function| {
            let aliases = function.aliases().to_vec();
            std::iter::once(function.name().to_owned()).chain(aliases)
        });
    let windows = ["row_number", "rank", "dense_rank", "lag", "lead", "ntile", "tumble", "hop", "session", "cumulate"];
    scalar.chain(aggregates).chain(windows.map(str::to_owned))
}
