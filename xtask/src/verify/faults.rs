//! `docs/faults.md` names tests; a test that is renamed or removed must not leave its name behind there.

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

#[test]
fn each_test_that_the_faults_page_names_exists() {
    let page = fs::read_to_string(workspace::root().join("docs/faults.md")).expect("the page");
    let named = named_tests(&page);
    assert!(named.len() > 20, "the page names few tests: {named:?}");
    let mut existing = BTreeSet::new();
    TESTED.iter().for_each(|directory| collect_functions(&workspace::root().join(directory), &mut existing));
    let missing: Vec<_> = named.difference(&existing).collect();
    assert!(missing.is_empty(), "docs/faults.md names tests that do not exist: {missing:?}");
}
