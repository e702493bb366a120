//! What may stand around a table, a name or a SELECT in sqlparser's syntax tree and is refused.
//!
//! Every field of the tree's nodes is named here, so that one that a new version adds does not go by unseen.

use datafusion_sql::sqlparser::ast::{
    Ident, Select, SelectFlavor, SelectItemQualifiedWildcardKind, TableAlias, TableAliasColumnDef, TableFactor,
    WildcardAdditionalOptions, WindowSpec,
};

/// The first of these that is there.
pub(super) fn first<'a>(clauses: &[(bool, &'a str)]) -> Option<&'a str> {
    clauses.iter().find_map(|(is_there, what)| is_there.then_some(*what))
}

/// What a table, a derived table or UNNEST has that is not supported, its alias included.
pub(crate) fn of_relation(relation: &TableFactor) -> Option<&'static str> {
    match relation {
        TableFactor::Table {
            name: _,
            alias,
            args,
            with_hints,
            version,
            with_ordinality,
            partitions,
            json_path,
            sample,
            index_hints,
        } => first(&[
            (args.is_some(), "a table function"),
            (version.is_some(), "FOR SYSTEM_TIME AS OF"),
            (sample.is_some(), "TABLESAMPLE"),
            (!with_hints.is_empty() || !index_hints.is_empty(), "a table hint"),
            (*with_ordinality, "WITH ORDINALITY"),
            (!partitions.is_empty(), "PARTITION"),
            (json_path.is_some(), "a path into a table"),
        ])
        .or_else(|| alias.as_ref().and_then(of_alias)),
        TableFactor::Derived { lateral, subquery: _, alias, sample } => {
            first(&[(*lateral, "LATERAL"), (sample.is_some(), "TABLESAMPLE")])
                .or_else(|| alias.as_ref().and_then(of_alias))
        }
        TableFactor::UNNEST { alias, array_exprs, with_offset, with_offset_alias, with_ordinality: _ } => first(&[
            (array_exprs.len() != 1, "UNNEST of several arrays"),
            (*with_offset || with_offset_alias.is_some(), "WITH OFFSET"),
        ])
        .or_else(|| alias.as_ref().and_then(of_alias)),
        TableFactor::NestedJoin { table_with_joins: _, alias } => {
            first(&[(alias.is_some(), "a JOIN in brackets with a name")])
        }
        TableFactor::TableFunction { .. } | TableFactor::Function { .. } => Some("a table function"),
        TableFactor::MatchRecognize { .. } => Some("MATCH_RECOGNIZE"),
        TableFactor::Pivot { .. } => Some("PIVOT"),
        TableFactor::Unpivot { .. } => Some("UNPIVOT"),
        TableFactor::JsonTable { .. }
        | TableFactor::OpenJsonTable { .. }
        | TableFactor::XmlTable { .. }
        | TableFactor::SemanticView { .. } => Some("this kind of table"),
    }
}

/// `AS t (a, b)`.
pub(crate) fn of_alias(alias: &TableAlias) -> Option<&'static str> {
    let TableAlias { explicit: _, name, columns, at } = alias;
    let has_type = |TableAliasColumnDef { name: _, data_type }: &TableAliasColumnDef| data_type.is_some();
    first(&[(at.is_some(), "AT behind an alias"), (columns.iter().any(has_type), "a type in the columns of an alias")])
        .or_else(|| of_name(name))
}

/// A name in single quotes.
pub(super) fn of_name(name: &Ident) -> Option<&'static str> {
    (name.quote_style == Some('\'')).then_some("an alias in single quotes (write it in backticks)")
}

/// What a SELECT has beside columns, FROM, WHERE, GROUP BY and HAVING. QUALIFY and DISTINCT ON are refused where they stand.
pub(super) fn of_select(select: &Select) -> Option<&'static str> {
    let Select {
        select_token: _,
        optimizer_hints: _,
        distinct: _,
        select_modifiers,
        top,
        top_before_distinct: _,
        projection: _,
        exclude,
        into,
        from: _,
        lateral_views,
        prewhere,
        selection: _,
        connect_by,
        group_by: _,
        cluster_by,
        distribute_by,
        sort_by,
        having: _,
        named_window,
        qualify: _,
        window_before_qualify: _,
        value_table_mode,
        flavor,
    } = select;
    first(&[
        (top.is_some(), "TOP"),
        (into.is_some(), "SELECT INTO"),
        (exclude.is_some(), "EXCLUDE"),
        (prewhere.is_some(), "PREWHERE"),
        (select_modifiers.is_some(), "a SELECT modifier"),
        (value_table_mode.is_some(), "SELECT AS"),
        (!lateral_views.is_empty(), "LATERAL VIEW"),
        (!connect_by.is_empty(), "CONNECT BY"),
        (!cluster_by.is_empty(), "CLUSTER BY"),
        (!distribute_by.is_empty(), "DISTRIBUTE BY"),
        (!sort_by.is_empty(), "SORT BY"),
        (!named_window.is_empty(), "WINDOW"),
        (*flavor != SelectFlavor::Standard, "FROM before SELECT"),
    ])
}

/// `*` with more than that.
pub(super) fn of_wildcard(options: &WildcardAdditionalOptions) -> Option<&'static str> {
    let WildcardAdditionalOptions {
        wildcard_token: _,
        opt_ilike,
        opt_exclude,
        opt_except,
        opt_replace,
        opt_rename,
        opt_alias,
    } = options;
    let is_changed = opt_ilike.is_some()
        || opt_exclude.is_some()
        || opt_except.is_some()
        || opt_replace.is_some()
        || opt_rename.is_some()
        || opt_alias.is_some();
    first(&[(is_changed, "a changed wildcard")])
}

/// `t.*` of what is no table.
pub(super) fn of_wildcard_of(kind: &SelectItemQualifiedWildcardKind) -> Option<&'static str> {
    match kind {
        SelectItemQualifiedWildcardKind::ObjectName(_) => None,
        SelectItemQualifiedWildcardKind::Expr(_) => Some("the fields of a value"),
    }
}

/// What OVER has beside PARTITION BY and ORDER BY.
pub(super) fn of_window(window: &WindowSpec) -> Option<&'static str> {
    let WindowSpec { window_name, partition_by: _, order_by: _, window_frame } = window;
    first(&[
        (window_name.is_some(), "a named window"),
        (window_frame.is_some(), "a frame (ROWS or RANGE) of ROW_NUMBER"),
    ])
}
