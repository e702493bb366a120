//! What the tests of the binary share: a directory that goes away, the binary run in it, what it said.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used, reason = "each test binary uses a part of it")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

pub struct Directory(PathBuf);

impl Directory {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sluice-command-line-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command.args(line.split_whitespace()).current_dir(&self.0).stdin(Stdio::null()).env_remove("RUST_LOG");
        command
    }

    pub fn run(&self, line: &str) -> Ran {
        Ran::from(self.command(line).output().unwrap())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// Reads standard error until a line holds the words.
pub fn wait_for_line(child: &mut Child, words: &str) {
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut seen = String::new();
    loop {
        let mut line = String::new();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "'{words}' was not said:\n{seen}");
        seen.push_str(&line);
        if line.contains(words) {
            break;
        }
    }
    // Whoever writes on must not be stopped by a full pipe.
    std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
}
