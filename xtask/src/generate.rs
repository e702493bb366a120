//! `cargo xtask generate [--check]`: one command for every file in the checkout that is made from other files.
//!
//! Each generator returns the files of the directories it owns as text; only this module writes or compares. A file in
//! such a directory that no generator makes any more is removed, or reported by `--check`.

mod chart_values;
mod custom_resources;
mod protobuf;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Write nothing; fail if a file in the checkout differs from what would be written
    #[arg(long)]
    pub(crate) check: bool,
}

/// What one generator makes.
struct Generated {
    /// Directory relative to the root of the checkout.
    directory: PathBuf,
    /// Files in it whose names end so belong to the generator.
    extension: &'static str,
    /// File name to text.
    files: BTreeMap<String, String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let root = workspace::root();
    let mut stale = Vec::new();
    let all = [
        protobuf::generate(&root)?,
        custom_resources::generate()?,
        custom_resources::generate_chart()?,
        chart_values::generate_schema(&root)?,
        chart_values::generate_readme(&root)?,
    ];
    for generated in all {
        stale.extend(differences(&root, &generated)?);
        if !arguments.check {
            write(&root, &generated)?;
        }
    }
    match (arguments.check, stale.as_slice()) {
        (_, []) => println!("generated files are up to date"),
        (false, changed) => changed.iter().for_each(|path| println!("wrote {}", path.display())),
        (true, changed) => {
            let list: Vec<_> = changed.iter().map(|path| path.display().to_string()).collect();
            bail!("not as generated: {}; run `cargo xtask generate` and commit what it writes", list.join(", "));
        }
    }
    Ok(())
}

/// Paths, relative to the root, that are missing, differ, or should not be there.
fn differences(root: &Path, generated: &Generated) -> Result<Vec<PathBuf>> {
    let mut different = Vec::new();
    for (name, text) in &generated.files {
        let path = generated.directory.join(name);
        if fs::read_to_string(root.join(&path)).ok().as_ref() != Some(text) {
            different.push(path);
        }
    }
    different.extend(leftovers(root, generated)?);
    Ok(different)
}

/// Files of an earlier run that are no longer generated.
fn leftovers(root: &Path, generated: &Generated) -> Result<Vec<PathBuf>> {
    let directory = root.join(&generated.directory);
    if !directory.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(&directory).with_context(|| format!("cannot list {}", directory.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(generated.extension) && !generated.files.contains_key(&name) {
            found.push(generated.directory.join(name));
        }
    }
    Ok(found)
}

fn write(root: &Path, generated: &Generated) -> Result<()> {
    let directory = root.join(&generated.directory);
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    for path in leftovers(root, generated)? {
        fs::remove_file(root.join(&path)).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    for (name, text) in &generated.files {
        let path = directory.join(name);
        if fs::read_to_string(&path).ok().as_ref() != Some(text) {
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}
