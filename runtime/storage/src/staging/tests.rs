//! On a file system: what is only out of sight is not lost, and what another process has committed is known.

use super::*;
use std::sync::atomic::{AtomicU32, Ordering};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A place for directories that goes away.
struct Volume(PathBuf);

impl Volume {
    fn new() -> Self {
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let path = std::env::temp_dir().join(format!("sluice-staging-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn staging(&self) -> Staging {
        Staging::open(&format!("file://{}/table", self.0.display()), None).unwrap()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

async fn stage(staging: &Staging, key: &str) -> StagedFile {
    let mut file = staging.begin(key).await.unwrap();
    staging.append(&mut file, Bytes::from_static(b"rows")).await.unwrap();
    staging.stage(file).await.unwrap()
}

#[tokio::test]
async fn a_file_in_a_directory_that_is_not_there_is_not_lost() {
    let volume = Volume::new();
    let staging = volume.staging();
    let file = stage(&staging, "a").await;
    let (mounted, away) = (volume.0.join("table"), volume.0.join("away"));
    fs::rename(&mounted, &away).unwrap();
    let failure = staging.commit(&file).await.unwrap_err();
    assert_eq!(failure.kind, StoreFailureKind::Unreachable);
    assert!(failure.message.contains(mounted.to_str().unwrap()) && failure.message.contains("mount"), "{failure}");
    fs::rename(&away, &mounted).unwrap();
    assert_eq!(staging.commit(&file).await.unwrap(), Committed::Now);
    assert_eq!(staging.commit(&file).await.unwrap(), Committed::Before);
    fs::remove_file(mounted.join("a")).unwrap();
    assert_eq!(staging.commit(&file).await.unwrap(), Committed::Lost);
}

#[tokio::test]
async fn a_place_that_cannot_be_looked_at_is_not_lost() {
    let volume = Volume::new();
    let staging = volume.staging();
    let file = stage(&staging, "a").await;
    fs::remove_file(volume.0.join("table/.a.inprogress")).unwrap();
    std::os::unix::fs::symlink("a", volume.0.join("table/a")).unwrap();
    let failure = staging.commit(&file).await.unwrap_err();
    assert!(failure.message.contains("table/a cannot be looked for"), "{failure}");
}

#[tokio::test]
async fn a_handle_names_its_directory_and_those_without_are_read() {
    let volume = Volume::new();
    let file = stage(&volume.staging(), "a").await;
    assert_eq!(file.directory.as_deref(), Some(volume.staging().uri()));
    let old: StagedFile = serde_json::from_str(r#"{"key":"a","size":4}"#).unwrap();
    assert_eq!(old, StagedFile { directory: None, ..file });
}

#[tokio::test]
async fn what_is_staged_in_directories_below_is_of_others() {
    let volume = Volume::new();
    let staging = volume.staging();
    stage(&staging, "a").await;
    stage(&staging, "below/b").await;
    let keys: Vec<_> = staging.staged().await.unwrap().into_iter().map(|upload| upload.key).collect();
    assert_eq!(keys, ["a"]);
}

#[tokio::test]
async fn what_went_with_the_directory_of_its_partition_is_lost_and_what_went_with_the_table_is_not() {
    let volume = Volume::new();
    let staging = volume.staging();
    let file = stage(&staging, "day=1/hour=2/a").await;
    fs::remove_dir_all(volume.0.join("table/day=1")).unwrap();
    assert_eq!(staging.commit(&file).await.unwrap(), Committed::Lost);
    fs::remove_dir(volume.0.join("table")).unwrap();
    let failure = staging.commit(&file).await.unwrap_err();
    let table = format!("{}/table is no directory", volume.0.display());
    assert!(failure.kind == StoreFailureKind::Unreachable && failure.message.starts_with(&table), "{failure}");
}

#[tokio::test]
async fn a_name_that_is_too_long_is_for_a_person() {
    let volume = Volume::new();
    for key in ["x".repeat(300), format!("day={}/a", "x".repeat(300))] {
        let failure = volume.staging().begin(&key).await.err().unwrap();
        assert!(failure.kind == StoreFailureKind::Unsuitable && failure.message.contains("shorter"), "{failure}");
    }
}
