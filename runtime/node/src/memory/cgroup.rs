//! The memory limit of the cgroup that the process is in, or of one above it: the smallest counts.
//!
//! In a container the own cgroup is mounted as the root. A process beside others (a systemd scope) finds its own by
//! `/proc/self/cgroup`. Versions 1 and 2 are known.

use std::path::{Path, PathBuf};

/// Where version 2 and the memory controller of version 1 are mounted, and the file with the limit.
const MOUNTS: [(&str, &str); 2] = [("", "memory.max"), ("memory", "memory.limit_in_bytes")];

/// The limit in bytes; absent where none is set.
pub(super) fn limit(mount: &Path, membership: &str) -> Option<u64> {
    let of_mount = |(below, file): (&str, &str)| {
        let root = mount.join(below);
        let own = own_path(membership, below);
        let limits = own.ancestors().filter_map(|path| {
            let path = root.join(path.strip_prefix("/").unwrap_or(path)).join(file);
            std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
        });
        limits.min()
    };
    MOUNTS.into_iter().filter_map(of_mount).min()
}

/// What `/proc/self/cgroup` says: lines of `number:controllers:path`, without controllers for version 2.
fn own_path(membership: &str, controller: &str) -> PathBuf {
    let path = membership.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        controllers.split(',').any(|name| name == controller).then_some(path)
    });
    PathBuf::from(path.unwrap_or("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_smallest_limit_on_the_way_to_the_root_counts() {
        let mount = std::env::temp_dir().join(format!("sluice-cgroup-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = mount.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/b/memory.max", "max\n");
        write("a/memory.max", "300000000\n");
        assert_eq!(limit(&mount, "0::/a/b\n"), Some(300_000_000));
        assert_eq!(limit(&mount, "0::/\n"), None);
        // In a container the path may be the host's, which is not seen; the root is the own one.
        write("memory.max", "200000000\n");
        assert_eq!(limit(&mount, "0::/host/pod\n"), Some(200_000_000));
        write("memory/c/memory.limit_in_bytes", "100000000\n");
        assert_eq!(limit(&mount, "5:cpu:/x\n4:memory,hugetlb:/c/d\n0::/\n"), Some(100_000_000));
        fs::remove_dir_all(&mount).unwrap();
    }
}
