//! `docs/faults.md` and the table of options in `docs/checkpoints.md` name tests; a test that is renamed or removed must
//! not leave its name behind there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::workspace;

/// Directories with tests.
const TESTED: [&str; 6] = ["runtime", "tests", "controller", "crds", "e2e", "xtask"];

/// The names of all functions in the Rust files below a directory.
fn collect_functions(directory: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).expect("a directory of the workspace") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect_functions(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source file");
            let functions = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
            names.extend(functions.map(str::to_owned));
        }
    }
}

/// What stands in backticks and can be a test's name: several words joined by underscores.
fn named_tests(page: &str) -> BTreeSet<String> {
    let is_test = |text: &&str| text.contains('_') && text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    page.split('`').skip(1).step_by(2).filter(is_test).map(str::to_owned).collect()
}

/// The names of all functions of the workspace.
fn existing_functions() -> BTreeSet<String> {
    let mut existing = BTreeSet::new();
    TESTED.iter().for_each(|directory| collect_functions(&workspace::root().join(directory), &mut existing));
    existing
}

/// Each row of the table ends with the names of its tests; three dots stand for the end of a name.
#[test]
fn each_option_of_checkpoints_names_a_test_that_exists() {
    let page = fs::read_to_string(workspace::root().join("docs/checkpoints.md")).expect("the page");
    let (_, table) = page.split_once("| option | what it does |").expect("the table of options");
    let rows: Vec<_> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 25, "the table has {} rows", rows.len());
    let existing = existing_functions();
    for row in rows {
        let last = row.trim_end_matches([' ', '|']).rsplit('|').next().expect("a row has cells");
        let names: Vec<_> = last.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test: {row}");
        for name in names {
            let exists = match name.strip_suffix('…') {
                Some(beginning) => existing.iter().any(|known| known.starts_with(beginning)),
                None => existing.contains(name),
            };
            assert!(exists, "docs/checkpoints.md names the test {name}, which does not exist");
        }
    }
}

#[test]
fn each_test_that_the_faults_page_names_exists() {
    let page = fs::read_to_string(workspace::root().join("docs/faults.md")).expect("the page");
    let named = named_tests(&page);
    assert!(named.len() > 20, "the page names few tests: {named:?}");
    let existing = existing_functions();
    let missing: Vec<_> = named.difference(&existing).collect();
    assert!(missing.is_empty(), "docs/faults.md names tests that do not exist: {missing:?}");
}
