//! Which shared libraries a program needs, asked of the dynamic loader itself by `ldd`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;

/// What glibc loads by name when it looks up a host, without any program being linked to it. Since glibc 2.34 these are
/// part of libc itself, and files of these names, where they exist, are empty.
const NAME_SERVICE: [&str; 3] = ["libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"];

/// The libraries and the loader, by the paths at which the loader looks for them.
pub(super) fn needed_by(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let listing = process::output(Command::new("ldd").arg(program))
        .with_context(|| format!("cannot tell which libraries {} needs; build it first", program.display()))?;
    let mut libraries = parse(&listing)?;
    let beside = libraries.iter().find(|path| path.file_name().is_some_and(|name| name == "libc.so.6")).cloned();
    let directory = beside.as_deref().and_then(Path::parent).context("the program is not linked to glibc")?;
    libraries.extend(NAME_SERVICE.iter().map(|name| directory.join(name)).filter(|path| path.exists()));
    Ok(libraries)
}

/// Lines are `NAME => PATH (ADDRESS)`, `PATH (ADDRESS)` for the loader, and `NAME (ADDRESS)` for the kernel's own.
fn parse(listing: &str) -> Result<BTreeSet<PathBuf>> {
    let mut libraries = BTreeSet::new();
    for line in listing.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let place = line.split_once(" => ").map_or(line, |(_, place)| place);
        if place == "not found" {
            bail!("a shared library is missing on this machine: {line}");
        }
        let path = place.split(" (").next().unwrap_or(place);
        if path.starts_with('/') {
            libraries.insert(PathBuf::from(path));
        }
    }
    Ok(libraries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_libraries_and_loader_are_taken() {
        let listing = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f5)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007f53)\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(parse(listing).unwrap(), BTreeSet::from(expected));
    }

    #[test]
    fn a_missing_library_is_an_error_that_names_it() {
        let error = parse("\tlibz.so.1 => not found\n").unwrap_err();
        assert!(error.to_string().contains("libz.so.1"), "{error}");
    }
}
