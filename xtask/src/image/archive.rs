//! The archive format of `docker save`: a manifest, the image's configuration, and its only layer.

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::json;
use sha2::{Digest, Sha256};
use tar::EntryType;

use super::Image;
use super::filesystem::{USER, append};

/// Replaces the archive in one step, so that nobody imports half of one.
pub(super) fn write(path: &Path, image: &Image, layer: &[u8]) -> Result<()> {
    let layer_digest = digest(layer);
    let configuration = serde_json::to_vec(&configuration(image, &layer_digest))?;
    let configuration_name = format!("{}.json", digest(&configuration));
    let layer_name = format!("{layer_digest}/layer.tar");
    let manifest = json!([{ "Config": configuration_name, "RepoTags": [image.reference()], "Layers": [layer_name] }]);

    let mut builder = tar::Builder::new(Vec::new());
    let manifest = serde_json::to_vec(&manifest)?;
    for (name, contents) in
        [("manifest.json", manifest.as_slice()), (&configuration_name, configuration.as_slice()), (&layer_name, layer)]
    {
        append(&mut builder, Path::new(name), EntryType::Regular, 0o644, contents)?;
    }
    let new = path.with_extension("tar.new");
    fs::write(&new, builder.into_inner()?)?;
    fs::rename(&new, path)?;
    Ok(())
}

fn configuration(image: &Image, layer_digest: &str) -> serde_json::Value {
    json!({
        "architecture": architecture(),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "User": format!("{USER}:{USER}"),
            "WorkingDir": "/",
            "Entrypoint": [format!("/{}", image.program_path())],
            "Env": ["PATH=/usr/local/bin"],
            "Labels": {
                "org.opencontainers.image.title": image.title,
                "org.opencontainers.image.version": image.version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer_digest}")] },
        "history": [{ "created": "1970-01-01T00:00:00Z", "created_by": "cargo xtask image" }],
    })
}

/// The architecture's name in images.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn digest(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_known_sha_256_of_nothing() {
        assert_eq!(digest(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }

    #[test]
    fn equal_images_are_equal_bytes_and_name_their_layer_by_its_digest() {
        let directory = tempfile::tempdir().unwrap();
        let image = &super::super::IMAGES[0];
        let paths = ["a.tar", "b.tar"].map(|name| directory.path().join(name));
        for path in &paths {
            write(path, image, b"layer").unwrap();
        }
        assert_eq!(fs::read(&paths[0]).unwrap(), fs::read(&paths[1]).unwrap());
        let archive = fs::read(&paths[0]).unwrap();
        let mut archive = tar::Archive::new(archive.as_slice());
        let names: Vec<_> =
            archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect();
        assert_eq!(names[2], format!("{}/layer.tar", digest(b"layer")));
    }
}
