//! Where the values of `${secret:NAME/KEY}` come from: the files that the controller has mounted, or on a workstation a directory
//! or variables of the environment. They are read anew whenever a client is made, and never kept or printed.

use sluice_connectors::SecretSource;
use sluice_crds::pod_template::protected::{PROGRAM_DIRECTORY, SECRETS_DIRECTORY};
use sluice_protocol::secrets::SecretReference;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The variable that names another directory than that of the pods.
pub const DIRECTORY_VARIABLE: &str = "SLUICE_SECRETS";

/// The source of a process: files `NAME/KEY` in the directory of [`DIRECTORY_VARIABLE`] or in that of the pods, else variables
/// such as `SLUICE_SECRET_KAFKA_PASSWORD` for `${secret:kafka/password}`.
#[must_use]
pub fn secrets_of_process() -> SecretSource {
    let directory = std::env::var_os(DIRECTORY_VARIABLE);
    let directory = directory.map_or_else(|| Path::new(PROGRAM_DIRECTORY).join(SECRETS_DIRECTORY), PathBuf::from);
    Arc::new(move |reference| look_up(&directory, reference, |name| std::env::var(name).ok()))
}

fn look_up(
    directory: &Path,
    reference: &SecretReference,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let file = directory.join(&reference.name).join(&reference.key);
    let name = variable_of(reference);
    match std::fs::read_to_string(&file) {
        Ok(text) => Ok(without_end_of_line(text)),
        Err(error) => variable(&name).ok_or_else(|| {
            format!(
                "{reference} has no value: {} cannot be read ({error}), and there is no variable {name}. Create the Secret with \
                 that key in the job's namespace; on a workstation set the variable, or {DIRECTORY_VARIABLE} to a directory with \
                 files NAME/KEY",
                file.display()
            )
        }),
    }
}

/// `SLUICE_SECRET_KAFKA_CA_CRT` for `${secret:kafka/ca.crt}`.
fn variable_of(SecretReference { name, key }: &SecretReference) -> String {
    let plain = |character: char| if character.is_ascii_alphanumeric() { character.to_ascii_uppercase() } else { '_' };
    format!("SLUICE_SECRET_{name}_{key}").chars().map(plain).collect()
}

/// An editor, or `echo`, puts an end behind a single line, which belongs to no password.
fn without_end_of_line(mut text: String) -> String {
    if text.lines().count() == 1 {
        text.truncate(text.trim_end_matches(['\n', '\r']).len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_go_before_variables_and_what_is_missing_is_named() {
        let directory = std::env::temp_dir().join(format!("sluice-secrets-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("kafka")).unwrap();
        std::fs::write(directory.join("kafka/password"), "pa$$ word\n").unwrap();
        std::fs::write(directory.join("kafka/ca.crt"), "a\nb\n").unwrap();
        let look = |key: &str| {
            let reference = SecretReference { name: "kafka".to_owned(), key: key.to_owned() };
            look_up(&directory, &reference, |name| (name == "SLUICE_SECRET_KAFKA_USER_NAME").then(|| "u".to_owned()))
        };
        assert_eq!(look("password").as_deref(), Ok("pa$$ word"));
        assert_eq!(look("ca.crt").as_deref(), Ok("a\nb\n"));
        assert_eq!(look("user-name").as_deref(), Ok("u"));
        let missing = look("other").unwrap_err();
        for part in ["${secret:kafka/other}", "kafka/other", "SLUICE_SECRET_KAFKA_OTHER", "SLUICE_SECRETS"] {
            assert!(missing.contains(part), "'{part}' is not in: {missing}");
        }
        std::fs::remove_dir_all(directory).unwrap();
    }
}
