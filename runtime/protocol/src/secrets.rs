//! References to Secrets in a program: `${secret:NAME/KEY}` in an option of a table.
//!
//! The controller mounts what is named here into the job's pods, and the job's processes put the values in when they make a
//! client. Manifests, plans and messages hold the reference alone.

use std::collections::BTreeSet;
use std::fmt;

const BEGIN: &str = "${secret:";

/// The longest name, and the longest key, that Kubernetes takes.
const LONGEST: usize = 253;

/// A key of a Secret in the job's namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretReference {
    /// The Secret.
    pub name: String,
    /// The key of its data.
    pub key: String,
}

impl fmt::Display for SecretReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${{secret:{}/{}}}", self.name, self.key)
    }
}

/// What looks like a reference and is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no reference to a Secret: it is written ${{secret:NAME/KEY}}, with the Secret's name and one of its keys"
)]
pub struct MalformedReference(pub String);

/// A piece of a text.
enum Piece<'a> {
    Text(&'a str),
    Reference(SecretReference),
    Malformed(&'a str),
}

/// All references in a text; what only looks like one is passed over.
#[must_use]
pub fn references(text: &str) -> BTreeSet<SecretReference> {
    let reference = |piece| match piece {
        Piece::Reference(reference) => Some(reference),
        Piece::Text(_) | Piece::Malformed(_) => None,
    };
    pieces(text).into_iter().filter_map(reference).collect()
}

/// Whether a text holds a reference.
///
/// # Errors
/// When it holds something that looks like one and is none.
pub fn check(text: &str) -> Result<bool, MalformedReference> {
    let mut is_there = false;
    for piece in pieces(text) {
        match piece {
            Piece::Malformed(what) => return Err(MalformedReference(what.to_owned())),
            Piece::Reference(_) => is_there = true,
            Piece::Text(_) => {}
        }
    }
    Ok(is_there)
}

/// A text with values in the place of references.
///
/// # Errors
/// The first that `value` says.
pub fn resolve<E>(text: &str, mut value: impl FnMut(&SecretReference) -> Result<String, E>) -> Result<String, E> {
    let mut resolved = String::new();
    for piece in pieces(text) {
        match piece {
            Piece::Text(text) | Piece::Malformed(text) => resolved.push_str(text),
            Piece::Reference(reference) => resolved.push_str(&value(&reference)?),
        }
    }
    Ok(resolved)
}

fn pieces(text: &str) -> Vec<Piece<'_>> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while let Some(start) = rest.find(BEGIN) {
        pieces.push(Piece::Text(&rest[..start]));
        let from = &rest[start..];
        let length = from.find('}').map_or(from.len(), |end| end + 1);
        let (whole, behind) = from.split_at(length);
        pieces.push(reference(whole).map_or(Piece::Malformed(whole), Piece::Reference));
        rest = behind;
    }
    pieces.push(Piece::Text(rest));
    pieces
}

fn reference(whole: &str) -> Option<SecretReference> {
    let (name, key) = whole.strip_prefix(BEGIN)?.strip_suffix('}')?.split_once('/')?;
    let in_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let in_key = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let is_edge = |character: char| character.is_ascii_alphanumeric();
    let is_name = name.bytes().all(in_name) && name.starts_with(is_edge) && name.ends_with(is_edge);
    // `..` would be the directory above.
    let is_key = !key.is_empty() && key.bytes().all(in_key) && !key.starts_with("..") && key != ".";
    let fits = name.len() <= LONGEST && key.len() <= LONGEST;
    (is_name && is_key && fits).then(|| SecretReference { name: name.to_owned(), key: key.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, key: &str) -> SecretReference {
        SecretReference { name: name.to_owned(), key: key.to_owned() }
    }

    #[test]
    fn references_are_found_and_replaced() {
        let text =
            "a '${secret:kafka/user}' and ${secret:kafka/password}, ${secret:my.ca-1/ca.crt}${secret:kafka/user}";
        let expected = [named("kafka", "password"), named("kafka", "user"), named("my.ca-1", "ca.crt")];
        assert!(references(text).into_iter().eq(expected));
        assert_eq!(check(text), Ok(true));
        let resolved = resolve::<()>(text, |reference| Ok(format!("<{}>", reference.key)));
        assert_eq!(resolved.as_deref(), Ok("a '<user>' and <password>, <ca.crt><user>"));
        assert_eq!(resolve(text, |reference| Err(reference.to_string())), Err("${secret:kafka/user}".to_owned()));
        assert_eq!(check("nothing of ${env:HOME}"), Ok(false));
    }

    #[test]
    fn what_only_looks_like_one_is_named_and_stays() {
        let wrong = [
            "${secret:kafka}",
            "${secret:/key}",
            "${secret:kafka/}",
            "${secret:Kafka/key}",
            "${secret:kafka/../x}",
            "${secret:kafka/..}",
            "${secret:../key}",
            "${secret:kafka/a b}",
            "${secret:kafka/key",
        ];
        for text in wrong {
            let text = format!("x{text}");
            assert_eq!(check(&text), Err(MalformedReference(text[1..].to_owned())));
            assert!(references(&text).is_empty(), "{text}");
            assert_eq!(resolve::<()>(&text, |_| Ok(String::new())), Ok(text));
        }
    }
}
