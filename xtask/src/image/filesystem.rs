//! The files of an image: gathered in memory, then written as a tar or into a directory.
//!
//! Sorted by path, owned by root, without times: equal contents give equal bytes.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use tar::{EntryType, Header};

/// The user that images run as; the same number that distroless images use.
pub(super) const USER: u32 = 65532;

/// Debian's, Fedora's and openSUSE's places for the bundle of CA certificates.
const CERTIFICATES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

enum Entry {
    Directory,
    File(Vec<u8>),
}

/// Relative path to mode and contents.
pub(super) struct Filesystem {
    entries: BTreeMap<PathBuf, (u32, Entry)>,
}

impl Filesystem {
    /// What every image has: users, name lookup, CA certificates and a `/tmp` that all may write to.
    pub(super) fn base() -> Result<Self> {
        let mut files = Self { entries: BTreeMap::new() };
        files.add_directory(Path::new("tmp"), 0o1777);
        let users = format!("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:{USER}:{USER}:nonroot:/:/sbin/nologin\n");
        files.add("etc/passwd", users.into_bytes());
        files.add("etc/group", format!("root:x:0:\nnonroot:x:{USER}:\n").into_bytes());
        files.add("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n".to_vec());
        let certificates = CERTIFICATES.iter().map(Path::new).find(|path| path.exists());
        let certificates = certificates.context("no CA certificates on this machine; install ca-certificates")?;
        files.add_file(certificates, Path::new(CERTIFICATES[0]))?;
        Ok(files)
    }

    fn add(&mut self, path: &str, contents: Vec<u8>) {
        self.insert(Path::new(path), 0o644, Entry::File(contents));
    }

    fn add_directory(&mut self, path: &Path, mode: u32) {
        self.insert(path, mode, Entry::Directory);
    }

    /// Copies a file of this machine, through symbolic links; executable there means executable in the image.
    pub(super) fn add_file(&mut self, source: &Path, path: &Path) -> Result<()> {
        let contents = fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
        let mode = fs::metadata(source).with_context(|| format!("cannot read {}", source.display()))?.permissions();
        let executable = mode.mode() & 0o111 != 0;
        self.insert(path, if executable { 0o755 } else { 0o644 }, Entry::File(contents));
        Ok(())
    }

    /// Adds the entry and the directories above it.
    fn insert(&mut self, path: &Path, mode: u32, entry: Entry) {
        let path: PathBuf = path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
        for parent in path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
            self.entries.entry(parent.to_path_buf()).or_insert((0o755, Entry::Directory));
        }
        self.entries.insert(path, (mode, entry));
    }

    /// The files as one layer.
    pub(super) fn to_tar(&self) -> Result<Vec<u8>> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, (mode, entry)) in &self.entries {
            let (kind, contents) = match entry {
                Entry::Directory => (EntryType::Directory, &[][..]),
                Entry::File(contents) => (EntryType::Regular, contents.as_slice()),
            };
            append(&mut builder, path, kind, *mode, contents)?;
        }
        builder.into_inner().context("cannot finish the layer")
    }

    /// The files below a directory, which is made.
    pub(super) fn write_to(&self, root: &Path) -> Result<()> {
        fs::create_dir_all(root).with_context(|| format!("cannot make {}", root.display()))?;
        for (path, (mode, entry)) in &self.entries {
            let path = root.join(path);
            match entry {
                Entry::Directory => fs::create_dir_all(&path),
                Entry::File(contents) => fs::write(&path, contents),
            }
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(*mode)))
            .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// Appends an entry whose bytes depend on the arguments alone.
pub(super) fn append(
    builder: &mut tar::Builder<Vec<u8>>,
    path: &Path,
    kind: EntryType,
    mode: u32,
    contents: &[u8],
) -> Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(contents.len() as u64);
    builder.append_data(&mut header, path, contents).with_context(|| format!("cannot add {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Filesystem {
        let mut files = Filesystem { entries: BTreeMap::new() };
        files.add("usr/bin/program", b"program".to_vec());
        files.add_directory(Path::new("/tmp"), 0o1777);
        files
    }

    #[test]
    fn a_layer_holds_the_directories_above_its_files_first() {
        let layer = example().to_tar().unwrap();
        let mut archive = tar::Archive::new(layer.as_slice());
        let entries: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                (entry.path().unwrap().display().to_string(), entry.header().mode().unwrap())
            })
            .collect();
        let expected = [("tmp", 0o1777), ("usr", 0o755), ("usr/bin", 0o755), ("usr/bin/program", 0o644)];
        assert_eq!(entries, expected.map(|(path, mode)| (path.to_owned(), mode)));
    }

    #[test]
    fn a_directory_gets_the_same_files_and_modes() {
        let directory = tempfile::tempdir().unwrap();
        example().write_to(directory.path()).unwrap();
        assert_eq!(fs::read(directory.path().join("usr/bin/program")).unwrap(), b"program");
        let mode = fs::metadata(directory.path().join("tmp")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o1777);
    }
}
