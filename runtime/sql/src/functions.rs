//! The functions that queries may call.
//!
//! A scalar function of DataFusion's is offered only where it was compared with Flink's of that name and means the
//! same; where Flink means something else, or DataFusion has none, the function is our own ([`own`]) or is rewritten
//! ([`crate::rewrite`]). All are immutable, so constant folding never fixes a clock or a random number in the plan
//! (F3), and a restart repeats what was computed before.

mod array;
mod decimal;
mod json;
mod own;
mod pattern;
mod proctime;
mod text;
mod time;
mod typed;

pub(crate) use array::{ARRAY, ELEMENT};
pub(crate) use decimal::DecimalPlanner;
pub(crate) use proctime::PROCTIME;

use crate::error::nearest;
use crate::rank::{ROW_NUMBER, RowNumber};
use crate::rewrite::replaced_names;
use datafusion_expr::{AggregateUDF, ScalarUDF, WindowUDF};
use datafusion_functions_aggregate::min_max::{max_udaf, min_udaf};
use own::Own;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use typed::{Kind, Typed};

/// DataFusion's scalar functions by the names users call them.
#[rustfmt::skip]
const SCALAR: [&str; 44] = [
    "abs", "acos", "ascii", "asin", "atan", "atan2", "btrim", "ceil", "char_length", "character_length", 
    "concat_ws", "cos", "cot", "degrees", "exp", "floor", "initcap", "instr", "ln", "log10", "log2", "lower", "ltrim",
    "nullif", "pi", "power", "radians", "repeat", "replace", "reverse", "round", "rtrim", "sin", "sqrt", "strpos",
    "sinh", "cosh", "tanh", "tan", "translate", "trim", "upper", "log", "position",
];

/// What rewritten calls become; nobody calls these by name.
#[rustfmt::skip]
const INTERNAL: [(&str, &str); 8] = [
    ("starts_with", "starts_with"), ("ends_with", "ends_with"), ("greatest", "greatest_value"),
    ("least", "least_value"), ("", "floor_to"), ("", "ceil_to"), ("", "timestamp_diff"), ("", "timestamp_add"),
];

/// Functions of Flink that exist but not here, for a better message; with why, or what to do instead.
const LATER: [(&str, &str); 15] = [
    ("now", CLOCK),
    ("current_timestamp", CLOCK),
    ("current_date", CLOCK),
    ("current_time", CLOCK),
    ("current_row_timestamp", CLOCK),
    ("localtime", CLOCK),
    ("localtimestamp", CLOCK),
    ("rand", RANDOM),
    ("random", RANDOM),
    ("rand_integer", RANDOM),
    ("uuid", RANDOM),
    ("sha1", ": use SHA256"),
    ("json_query", ": use JSON_VALUE"),
    ("json_array", ""),
    ("json_object", ""),
];

/// The function behind CAST to STRING.
const PRINTED: &str = "printed";
const CLOCK: &str = ": a restart would compute another value";
const RANDOM: &str = CLOCK;

/// What a name in a call stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FunctionKind {
    /// Row in, value out.
    Scalar,
    /// Many rows in, value out.
    Aggregate,
    /// Many rows in, a value for each out: with OVER.
    Window,
}

/// The functions by name.
#[derive(Debug)]
pub(crate) struct Functions {
    scalar: BTreeMap<String, Arc<ScalarUDF>>,
    /// Names of scalar functions that a query may call.
    called: BTreeSet<String>,
    aggregates: BTreeMap<String, Arc<AggregateUDF>>,
    row_number: Arc<WindowUDF>,
}

impl Functions {
    /// All that are supported.
    pub(crate) fn new() -> Self {
        let mut scalar = BTreeMap::new();
        for function in datafusion_functions::all_default_functions() {
            let names = std::iter::once(function.name()).chain(function.aliases().iter().map(String::as_str));
            for name in names {
                if SCALAR.contains(&name) {
                    scalar.insert(name.to_owned(), Arc::clone(&function));
                }
                for (_, internal) in INTERNAL.iter().filter(|(theirs, _)| *theirs == name) {
                    scalar.insert((*internal).to_owned(), Arc::clone(&function));
                }
            }
        }
        for definition in
            text::DEFINITIONS.iter().chain(time::DEFINITIONS).chain(json::DEFINITIONS).chain(array::DEFINITIONS)
        {
            scalar.insert(definition.name.to_owned(), Own::udf(definition));
        }
        scalar.extend(array::udfs().map(|function| (function.name().to_owned(), function)));
        scalar.insert(PROCTIME.to_owned(), proctime::udf());
        let called = scalar.keys().filter(|name| INTERNAL.iter().all(|(_, internal)| internal != name));
        let called = called
            .filter(|name| ![PRINTED, ELEMENT, ARRAY].contains(&name.as_str()))
            .cloned()
            .chain(replaced_names().map(str::to_owned))
            .collect();
        let count = datafusion_functions_aggregate::count::count_udaf();
        let typed = |kind| Arc::new(AggregateUDF::from(Typed::new(kind)));
        let aggregates = [count, min_udaf(), max_udaf(), typed(Kind::Sum), typed(Kind::Average)];
        let aggregates = aggregates.into_iter().map(|function| (function.name().to_owned(), function)).collect();
        Self { scalar, called, aggregates, row_number: Arc::new(WindowUDF::from(RowNumber::new())) }
    }

    /// A scalar function by its name in small letters.
    pub(crate) fn scalar(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.scalar.get(name).cloned()
    }

    /// An aggregate function by its name in small letters.
    pub(crate) fn aggregate(&self, name: &str) -> Option<Arc<AggregateUDF>> {
        self.aggregates.get(name).cloned()
    }

    /// A window function by its name in small letters.
    pub(crate) fn window(&self, name: &str) -> Option<Arc<WindowUDF>> {
        (name == ROW_NUMBER).then(|| Arc::clone(&self.row_number))
    }

    /// What CAST to STRING does with booleans and times.
    pub(crate) fn printed(&self) -> Option<Arc<ScalarUDF>> {
        self.scalar(PRINTED)
    }

    /// Names of scalar functions that a query may call.
    #[cfg(test)]
    pub(crate) fn called(&self) -> impl Iterator<Item = &String> {
        self.called.iter().filter(|name| *name != PROCTIME)
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
        if self.called.contains(&small) {
            return Ok(FunctionKind::Scalar);
        }
        if small == ROW_NUMBER {
            return Ok(FunctionKind::Window);
        }
        if let Some((_, advice)) = LATER.iter().find(|(later, _)| *later == small) {
            return Err(FunctionRefusal::Unsupported(format!("{} is not supported yet{advice}", name.to_uppercase())));
        }
        let is_known = known_elsewhere().any(|known| known == small);
        if is_known {
            return Err(FunctionRefusal::Unsupported(format!("{} is not supported yet", name.to_uppercase())));
        }
        let near = nearest(&small, self.called.iter().chain(self.aggregates.keys()).map(|name| name.to_uppercase()));
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
