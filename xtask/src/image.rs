//! `cargo xtask image`: the two images as archives, made without Docker.
//!
//! An image holds one program and only what that program needs: the shared libraries it is linked to, the dynamic
//! loader, CA certificates, and the files that glibc looks users and names up in. Nothing else can then be exploited
//! or has to be updated. The same inputs give the same bytes. `--filesystem` writes the same files into a directory,
//! from which the Dockerfile makes its images, so there is one description of what is in them.

mod archive;
mod filesystem;
mod libraries;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::workspace;
use filesystem::Filesystem;

#[derive(clap::Args, Default)]
pub(crate) struct Arguments {
    /// Write each image's files into DIRECTORY/NAME instead of writing archives
    #[arg(long, value_name = "DIRECTORY")]
    filesystem: Option<PathBuf>,
    /// Take the programs as they are instead of building them first
    #[arg(long)]
    no_build: bool,
}

/// One of the project's images.
pub(crate) struct Image {
    /// The last part of its name.
    pub(crate) name: &'static str,
    /// The program it runs.
    pub(crate) program: &'static str,
    title: &'static str,
    version: &'static str,
}

/// Every image of the project.
pub(crate) const IMAGES: [Image; 2] = [
    Image {
        name: "runtime",
        program: "sluice",
        title: "Sluice's JobManager and TaskManager",
        version: workspace::VERSION,
    },
    Image {
        name: "controller",
        program: "sluice-controller",
        title: "Sluice's controller",
        version: workspace::VERSION,
    },
];

/// The runtime as another version, to which tests on a cluster move jobs, and back. Its program is the same one: what an
/// older one says and understands otherwise is in the tests of the controller's plan.
pub(crate) const OTHER_RUNTIME: Image = {
    let [runtime, _] = IMAGES;
    Image { version: "other", ..runtime }
};

/// A written image.
pub(crate) struct Built {
    /// The archive, as `docker load` and `ctr images import` read it.
    pub(crate) archive: PathBuf,
    /// Bytes of its only layer, unpacked.
    pub(crate) size: u64,
}

impl Image {
    /// `sluice/<name>:<version>`.
    pub(crate) fn reference(&self) -> String {
        format!("sluice/{}:{}", self.name, self.version)
    }

    /// Where its program lies in it.
    fn program_path(&self) -> String {
        format!("usr/local/bin/{}", self.program)
    }

    /// Writes the archive from the program as it was last built.
    pub(crate) fn build(&self) -> Result<Built> {
        let directory = workspace::images()?;
        fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let version = if self.version == workspace::VERSION { String::new() } else { format!("-{}", self.version) };
        let archive = directory.join(format!("{}{version}.tar", self.name));
        let layer = self.filesystem()?.to_tar()?;
        archive::write(&archive, self, &layer).with_context(|| format!("cannot write {}", archive.display()))?;
        Ok(Built { archive, size: layer.len() as u64 })
    }

    fn filesystem(&self) -> Result<Filesystem> {
        let program = workspace::programs()?.join(self.program);
        let mut files = Filesystem::base()?;
        for library in libraries::needed_by(&program)? {
            files.add_file(&library, &library)?;
        }
        files.add_file(&program, Path::new(&self.program_path()))?;
        Ok(files)
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if !arguments.no_build {
        workspace::build_programs()?;
    }
    for image in &IMAGES {
        if let Some(directory) = &arguments.filesystem {
            let directory = directory.join(image.name);
            image.filesystem()?.write_to(&directory)?;
            println!("{}: {}", image.reference(), directory.display());
        } else {
            let built = image.build()?;
            println!("{}: {} ({:.1} MB)", image.reference(), built.archive.display(), megabytes(built.size));
        }
    }
    Ok(())
}

/// In units of 10^6 bytes, as Docker shows sizes.
#[expect(clippy::cast_precision_loss, reason = "sizes of images are far below 2^53")]
pub(crate) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
