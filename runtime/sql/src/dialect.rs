//! The dialect of SQL that is parsed: sqlparser's generic one without what would make a mistake mean something.
//!
//! What other systems write and Flink does not is still parsed where a later step refuses it by name. Left out is what
//! the syntax tree would not show (a comma behind the last column, comments that are executed) or what is only another
//! way to write the same. And `a IS DISTINCT FROM b AND c` is `(a IS DISTINCT FROM b) AND c`, as in Flink, where
//! sqlparser takes all that follows for the right side.

use datafusion_sql::sqlparser::ast::Expr;
use datafusion_sql::sqlparser::dialect::{Dialect, GenericDialect, Precedence};
use datafusion_sql::sqlparser::keywords::Keyword;
use datafusion_sql::sqlparser::parser::{Parser, ParserError};
use std::any::TypeId;

/// What parser and tokenizer take.
pub(crate) static DIALECT: Flink = Flink;

/// Flink's dialect, as far as sqlparser has it.
#[derive(Debug)]
pub(crate) struct Flink;

/// Says yes to what the generic dialect has too.
macro_rules! as_generic {
    ($($feature:ident),* $(,)?) => {
        $(fn $feature(&self) -> bool { GenericDialect.$feature() })*
    };
}

impl Dialect for Flink {
    fn dialect(&self) -> TypeId {
        TypeId::of::<GenericDialect>()
    }

    fn is_identifier_start(&self, character: char) -> bool {
        GenericDialect.is_identifier_start(character)
    }

    fn is_identifier_part(&self, character: char) -> bool {
        GenericDialect.is_identifier_part(character)
    }

    fn parse_infix(&self, parser: &mut Parser, left: &Expr, _: u8) -> Option<Result<Expr, ParserError>> {
        let is_distinct = parser.parse_keywords(&[Keyword::IS, Keyword::DISTINCT, Keyword::FROM]);
        let is_same =
            !is_distinct && parser.parse_keywords(&[Keyword::IS, Keyword::NOT, Keyword::DISTINCT, Keyword::FROM]);
        let make = match (is_distinct, is_same) {
            (true, _) => Expr::IsDistinctFrom,
            (_, true) => Expr::IsNotDistinctFrom,
            _ => return None,
        };
        // As tightly as a comparison.
        let right = parser.parse_subexpr(self.prec_value(Precedence::Eq));
        Some(right.map(|right| make(Box::new(left.clone()), Box::new(right))))
    }

    as_generic!(
        allow_extract_custom,
        support_map_literal_syntax,
        supports_array_join_syntax,
        supports_array_typedef_with_brackets,
        supports_bitwise_shift_operators,
        supports_comment_optimizer_hint,
        supports_connect_by,
        supports_dictionary_syntax,
        supports_empty_projections,
        supports_filter_during_aggregation,
        supports_from_first_select,
        supports_group_by_expr,
        supports_group_by_with_modifier,
        supports_interpolate,
        supports_interval_options,
        supports_left_associative_joins_without_parens,
        supports_limit_by,
        supports_limit_comma,
        supports_match_against,
        supports_match_recognize,
        supports_named_fn_args_with_assignment_operator,
        supports_nested_comments,
        supports_parens_around_table_factor,
        supports_partition_by_after_order_by,
        supports_pipe_operator,
        supports_prewhere,
        supports_quote_delimited_string,
        supports_select_format,
        supports_select_item_multi_column_alias,
        supports_select_wildcard_except,
        supports_select_wildcard_exclude,
        supports_select_wildcard_ilike,
        supports_select_wildcard_rename,
        supports_select_wildcard_replace,
        supports_settings,
        supports_string_escape_constant,
        supports_struct_literal,
        supports_unicode_string_literal,
        supports_values_as_table_factor,
        supports_window_clause_named_window_reference,
        supports_window_function_null_treatment_arg,
        supports_with_fill,
        supports_xml_expressions,
    );
}
