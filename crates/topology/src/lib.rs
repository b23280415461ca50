//! The CPUs of a machine, from sysfs: SMT siblings, shared last-level caches, NUMA nodes and
//! efficiency cores.
//!
//! [`Topology::read`] takes the mount point of sysfs, so it can read another machine's tree.
//! Containers and some virtual machines show less than the kernel knows. Without files about
//! caches, the CPUs of one package and node count as sharing one; without nodes there is one
//! ([`Topology::caches_known`], [`Topology::nodes_known`]).
//!
//! | file | contents |
//! |---|---|
//! | `read.rs` | the tree; one file, read strictly and bounded; lists of CPUs, such as `0-3,8` |
//! | `testing.rs` | trees of real machines, for tests |
#![forbid(unsafe_code)]

mod read;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use read::TopologyError;
pub use read::{CpuListError, cpu_list, parse_cpu_list};

use weir_policy::placement::Cpu;

/// The processors of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Online processors, by number. A group has the number of its lowest processor.
    pub cpus: Vec<Cpu>,
    /// The kernel reports which processors share a cache.
    pub caches_known: bool,
    /// The kernel reports the nodes of processors.
    pub nodes_known: bool,
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fmt::Write as _;
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    fn tree(fixture: &str) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        testing::expand(fixture, dir.path()).unwrap();
        dir
    }

    fn read(fixture: &str) -> Topology {
        Topology::read(tree(fixture).path()).unwrap()
    }

    /// Summarises cores, caches, nodes and kinds, each with its processors.
    fn summary(topology: &Topology) -> String {
        let groups = |of: &dyn Fn(&Cpu) -> String| {
            let mut groups: BTreeMap<(u16, String), BTreeSet<u16>> = BTreeMap::new();
            let mut firsts = BTreeMap::new();
            for cpu in &topology.cpus {
                let first = *firsts.entry(of(cpu)).or_insert(cpu.id);
                groups.entry((first, of(cpu))).or_default().insert(cpu.id);
            }
            let groups: Vec<_> = groups.values().map(cpu_list).collect();
            groups.chunks(12).map(|line| line.join(" | ")).collect::<Vec<_>>().join("\n    ")
        };
        let mut text = String::new();
        writeln!(text, "cores: {}", groups(&|cpu| cpu.core.to_string())).unwrap();
        writeln!(text, "caches: {}", groups(&|cpu| cpu.cache.to_string())).unwrap();
        writeln!(text, "nodes: {}", groups(&|cpu| cpu.node.to_string())).unwrap();
        writeln!(
            text,
            "kinds: {}",
            groups(&|cpu| if cpu.efficiency { "Efficiency" } else { "Performance" }.to_string())
        )
        .unwrap();
        text
    }

    #[test]
    fn four_cores_share_one_cache() {
        let topology = read(testing::ONE_CACHE);
        assert!(topology.caches_known && topology.nodes_known);
        insta::assert_snapshot!(summary(&topology), @r"
    cores: 0 | 1 | 2 | 3
    caches: 0-3
    nodes: 0-3
    kinds: 0-3
    ");
    }

    #[test]
    fn two_sockets_have_a_cache_and_a_node_each() {
        insta::assert_snapshot!(summary(&read(testing::TWO_SOCKETS_SMT)), @r"
    cores: 0,16 | 1,17 | 2,18 | 3,19 | 4,20 | 5,21 | 6,22 | 7,23 | 8,24 | 9,25 | 10,26 | 11,27
        12,28 | 13,29 | 14,30 | 15,31
    caches: 0-7,16-23 | 8-15,24-31
    nodes: 0-7,16-23 | 8-15,24-31
    kinds: 0-31
    ");
    }

    #[test]
    fn three_cores_of_a_ccx_share_a_cache() {
        let topology = read(testing::AMD_CCX);
        assert_eq!(topology.cpus.len(), 96);
        insta::assert_snapshot!(summary(&topology), @r"
    cores: 0,48 | 1,49 | 2,50 | 3,51 | 4,52 | 5,53 | 6,54 | 7,55 | 8,56 | 9,57 | 10,58 | 11,59
        12,60 | 13,61 | 14,62 | 15,63 | 16,64 | 17,65 | 18,66 | 19,67 | 20,68 | 21,69 | 22,70 | 23,71
        24,72 | 25,73 | 26,74 | 27,75 | 28,76 | 29,77 | 30,78 | 31,79 | 32,80 | 33,81 | 34,82 | 35,83
        36,84 | 37,85 | 38,86 | 39,87 | 40,88 | 41,89 | 42,90 | 43,91 | 44,92 | 45,93 | 46,94 | 47,95
    caches: 0-2,48-50 | 3-5,51-53 | 6-8,54-56 | 9-11,57-59 | 12-14,60-62 | 15-17,63-65 | 18-20,66-68 | 21-23,69-71 | 24-26,72-74 | 27-29,75-77 | 30-32,78-80 | 33-35,81-83
        36-38,84-86 | 39-41,87-89 | 42-44,90-92 | 45-47,93-95
    nodes: 0-5,48-53 | 6-11,54-59 | 12-17,60-65 | 18-23,66-71 | 24-29,72-77 | 30-35,78-83 | 36-41,84-89 | 42-47,90-95
    kinds: 0-95
    ");
    }

    #[test]
    fn efficiency_cores_are_told_apart() {
        insta::assert_snapshot!(summary(&read(testing::HYBRID)), @r"
    cores: 0-1 | 2-3 | 4-5 | 6-7 | 8-9 | 10-11 | 12 | 13 | 14 | 15 | 16 | 17
        18 | 19
    caches: 0-19
    nodes: 0-19
    kinds: 0-11 | 12-19
    ");
    }

    #[test]
    fn a_small_virtual_machine_has_one_cache_that_nobody_has_named() {
        let topology = read(testing::SMALL_VM);
        assert!(!topology.caches_known && !topology.nodes_known);
        insta::assert_snapshot!(summary(&topology), @r"
    cores: 0 | 1
    caches: 0-1
    nodes: 0-1
    kinds: 0-1
    ");
    }

    #[test]
    fn a_list_of_processors_is_all_that_is_needed() {
        let topology = read("devices/system/cpu/online = 0,2\n");
        let cpus: Vec<_> = topology.cpus.iter().map(|cpu| (cpu.id, cpu.core, cpu.cache)).collect();
        assert_eq!(cpus, [(0, 0, 0), (2, 2, 0)]);
        let empty = tempfile::tempdir().unwrap();
        let error = Topology::read(empty.path()).unwrap_err();
        assert!(error.to_string().ends_with("devices/system/cpu/online"), "{error}");
    }

    #[test]
    fn processors_that_are_offline_are_none() {
        let dir = tree(testing::ONE_CACHE);
        fs::write(dir.path().join("devices/system/cpu/online"), "0,2-3\n").unwrap();
        let ids: Vec<_> =
            Topology::read(dir.path()).unwrap().cpus.iter().map(|cpu| cpu.id).collect();
        assert_eq!(ids, [0, 2, 3]);
    }

    #[test]
    fn small_capacities_are_efficiency_cores() {
        let fixture = "devices/system/cpu/online = 0-3\n\
                       devices/system/cpu/cpu{0-1}/cpu_capacity = 446\n\
                       devices/system/cpu/cpu2/cpu_capacity = 1000\n\
                       devices/system/cpu/cpu3/cpu_capacity = 1024\n";
        let small: Vec<_> = read(fixture).cpus.iter().map(|cpu| cpu.efficiency).collect();
        assert_eq!(small, [true, true, false, false]);
    }

    #[test]
    fn nonsense_is_refused_with_the_file_and_the_reason() {
        let cases = [
            ("devices/system/cpu/online", "0-x", "neither a number"),
            ("devices/system/cpu/online", "0-4095", "no CPU 4095"),
            (
                "devices/system/cpu/cpu1/topology/core_cpus_list",
                "2-3",
                "does not list its own CPU 1",
            ),
            ("devices/system/cpu/cpu1/topology/physical_package_id", "first", "is not a number"),
            ("devices/system/cpu/cpu3/cache/index3/level", "", "is not a number"),
            ("devices/system/cpu/cpu3/cache/index3/shared_cpu_list", "0-2", "does not list"),
            ("devices/system/node/node0/cpulist", "3-0", "ends before it begins"),
        ];
        for (path, content, reason) in cases {
            let dir = tree(testing::ONE_CACHE);
            fs::write(dir.path().join(path), content).unwrap();
            let error = Topology::read(dir.path()).unwrap_err().to_string();
            assert!(error.contains(path) && error.contains(reason), "{error}");
        }
        let dir = tree(testing::ONE_CACHE);
        let long = "0,".repeat(weir_limits::SYSFS_BYTES_MAX as usize);
        fs::write(dir.path().join("devices/system/cpu/online"), long).unwrap();
        assert!(matches!(Topology::read(dir.path()), Err(TopologyError::TooLong { .. })));
    }

    #[test]
    fn this_machine_can_be_read() {
        let topology = Topology::read("/sys".as_ref()).unwrap();
        assert!(!topology.cpus.is_empty());
        for cpu in &topology.cpus {
            assert!(cpu.core <= cpu.id && cpu.cache <= cpu.id, "{cpu:?}");
        }
    }
}
