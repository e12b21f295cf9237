//! Topology of the machine's CPUs: NUMA nodes, shared caches and SMT siblings.
//!
//! [`Workers`](crate::Workers) uses it to choose the order of its cores. "Core" means a CPU of the kernel; with SMT
//! (hyper-threading), several of them are threads of one physical core.

use std::fs;
use std::path::Path;
use std::str::FromStr;

/// The CPUs of a machine, as described by `/sys/devices/system`.
///
/// ```
/// use anello::server::Topology;
///
/// let topology = Topology::read();
/// // One core per physical core first, then their SMT siblings.
/// let cores = topology.preferred_order(&anello::doctor::allowed_cores()?);
/// assert_eq!(cores.len(), anello::doctor::allowed_cores()?.len());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    cores: Vec<Core>,
}

/// A core, and what it shares with others.
///
/// ```
/// for core in anello::server::Topology::read().cores() {
///     assert!(core.siblings.contains(&core.number));
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Core {
    /// Number of the core, as in CPU affinity masks.
    pub number: usize,
    /// Number of its NUMA node, or `None` if the kernel does not report it.
    pub node: Option<usize>,
    /// Cores that share its last-level cache, including itself, in ascending order. Empty if the kernel does not report
    /// caches.
    pub cache_sharers: Vec<usize>,
    /// Hardware threads of its physical core, including itself, in ascending order.
    pub siblings: Vec<usize>,
}

impl Topology {
    /// Reads the topology of this machine. Cores that the kernel does not describe are omitted.
    ///
    /// ```
    /// let topology = anello::server::Topology::read();
    /// assert!(topology.cores().is_sorted_by_key(|core| core.number));
    /// ```
    pub fn read() -> Self {
        Self::read_from(Path::new("/"))
    }

    /// Reads the topology from the directory `sys/devices/system` below `root`.
    ///
    /// ```
    /// use anello::server::Topology;
    ///
    /// let unknown = Topology::read_from("/nonexistent".as_ref());
    /// assert!(unknown.cores().is_empty());
    /// assert_eq!(unknown.preferred_order(&[2, 0]), [0, 2]);
    /// ```
    pub fn read_from(root: &Path) -> Self {
        let system = root.join("sys/devices/system");
        let nodes: Vec<_> = numbered(&system.join("node"), "node")
            .into_iter()
            .map(|node| (node, list(&system.join(format!("node/node{node}/cpulist"))).unwrap_or_default()))
            .collect();
        let core = |number| {
            let directory = system.join(format!("cpu/cpu{number}"));
            // Missing for a core that is offline.
            let siblings = list(&directory.join("topology/thread_siblings_list"))?;
            let node = nodes.iter().find(|(_, cores)| cores.contains(&number)).map(|(node, _)| *node);
            Some(Core { number, node, cache_sharers: last_level_cache(&directory.join("cache")), siblings })
        };
        Self { cores: numbered(&system.join("cpu"), "cpu").into_iter().filter_map(core).collect() }
    }

    /// Returns the cores that are online, in ascending order.
    ///
    /// ```
    /// let cores = anello::server::Topology::read().cores().len();
    /// println!("{cores} cores");
    /// ```
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// Returns `cores` in the order in which workers should use them: one thread of each physical core, then the
    /// second threads, and so on. Within each of these groups, the cores of a NUMA node are adjacent, and within a node
    /// the cores with a common cache. A core that the topology lacks counts as a separate physical core.
    ///
    /// ```
    /// let order = anello::server::Topology::default().preferred_order(&[3, 1]);
    /// assert_eq!(order, [1, 3]);
    /// ```
    pub fn preferred_order(&self, cores: &[usize]) -> Vec<usize> {
        let key = |&number: &usize| {
            let Some(core) = self.core(number) else { return (0, None, None, number) };
            let rank =
                core.siblings.iter().filter(|&&other| other < number && cores.contains(&other)).count();
            (rank, core.node, core.cache_sharers.first().copied(), number)
        };
        let mut order = cores.to_vec();
        order.sort_by_cached_key(key);
        order
    }

    fn core(&self, number: usize) -> Option<&Core> {
        let index = self.cores.binary_search_by_key(&number, |core| core.number).ok()?;
        self.cores.get(index)
    }
}

/// Returns the numbers of the entries of a directory whose names are `prefix` and a number, in ascending order.
fn numbered(directory: &Path, prefix: &str) -> Vec<usize> {
    let names = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut numbers: Vec<usize> =
        names.filter_map(|name| name.to_str()?.strip_prefix(prefix)?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// Returns the cores that share the cache of the highest level.
fn last_level_cache(directory: &Path) -> Vec<usize> {
    let caches =
        numbered(directory, "index").into_iter().map(|index| directory.join(format!("index{index}")));
    let last = caches.filter_map(|cache| Some((parse::<u32>(&cache.join("level"))?, cache))).max();
    last.and_then(|(_, cache)| list(&cache.join("shared_cpu_list"))).unwrap_or_default()
}

fn parse<T: FromStr>(file: &Path) -> Option<T> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn list(file: &Path) -> Option<Vec<usize>> {
    parse_core_list(&fs::read_to_string(file).ok()?)
}

/// Parses a list of cores in the format of the kernel, such as `0-2,8`. Returns `None` if the text has another format.
///
/// ```
/// use anello::server::parse_core_list;
///
/// assert_eq!(parse_core_list("0-2,8\n"), Some(vec![0, 1, 2, 8]));
/// assert_eq!(parse_core_list("\n"), Some(vec![]));
/// assert_eq!(parse_core_list("0-"), None);
/// ```
pub fn parse_core_list(text: &str) -> Option<Vec<usize>> {
    /// Above the largest number of CPUs for which Linux can be built.
    const MAX_CORE: usize = 1 << 16;
    let mut cores = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let last: usize = last.parse().ok().filter(|last| *last <= MAX_CORE)?;
        cores.extend(first.parse().ok()?..=last);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join("sys/devices/system").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }

        /// Adds a core with its own first-level cache, and a third-level cache that `sharers` share.
        fn core(&self, number: usize, siblings: &str, sharers: &str) {
            self.write(&format!("cpu/cpu{number}/topology/thread_siblings_list"), siblings);
            for (index, (level, list)) in [(1, siblings), (3, sharers)].into_iter().enumerate() {
                self.write(&format!("cpu/cpu{number}/cache/index{index}/level"), &level.to_string());
                self.write(&format!("cpu/cpu{number}/cache/index{index}/shared_cpu_list"), list);
            }
        }

        fn topology(&self) -> Topology {
            Topology::read_from(self.0.path())
        }
    }

    /// Two nodes with two cores of two threads. The kernel numbers the first threads of all cores first, and
    /// alternates the nodes.
    fn two_nodes() -> Machine {
        let machine = Machine::new();
        for (number, siblings) in (0..8).zip(["0,4", "1,5", "2,6", "3,7"].into_iter().cycle()) {
            machine.core(number, siblings, if number % 2 == 0 { "0,2,4,6" } else { "1,3,5,7" });
        }
        machine.write("node/node0/cpulist", "0,2,4,6");
        machine.write("node/node1/cpulist", "1,3,5,7");
        // Entries that are neither a core nor a node.
        machine.write("cpu/cpufreq/boost", "1");
        machine.write("node/has_cpu", "0-1");
        machine
    }

    #[test]
    fn physical_cores_precede_siblings_and_nodes_are_adjacent() {
        let machine = two_nodes();
        let topology = machine.topology();
        let core = &topology.cores()[5];
        assert_eq!((core.number, core.node, &core.siblings[..]), (5, Some(1), &[1, 5][..]));
        assert_eq!(core.cache_sharers, [1, 3, 5, 7]);
        assert_eq!(topology.preferred_order(&Vec::from_iter(0..8)), [0, 2, 1, 3, 4, 6, 5, 7]);
        // Of two threads, only the second is allowed: no worker shares its physical core.
        assert_eq!(topology.preferred_order(&[0, 1, 4, 6, 7]), [0, 6, 1, 7, 4]);
    }

    #[test]
    fn offline_core_is_omitted() {
        let machine = two_nodes();
        // An offline core keeps its directory, but not its topology.
        fs::remove_dir_all(machine.0.path().join("sys/devices/system/cpu/cpu2/topology")).unwrap();
        machine.core(6, "6", "0,4,6");
        machine.write("node/node0/cpulist", "0,4,6");
        let topology = machine.topology();
        assert!(topology.core(2).is_none());
        assert_eq!(topology.preferred_order(&[0, 1, 3, 4, 5, 6, 7]), [0, 6, 1, 3, 4, 5, 7]);
    }

    #[test]
    fn cores_that_share_a_cache_are_adjacent() {
        // One node with two groups of two cores, whose threads have adjacent numbers.
        let machine = Machine::new();
        for number in 0..8 {
            let first = number / 2 * 2;
            let sharers = if [0, 1, 4, 5].contains(&number) { "0-1,4-5" } else { "2-3,6-7" };
            machine.core(number, &format!("{first}-{}", first + 1), sharers);
        }
        machine.write("node/node0/cpulist", "0-7");
        let order = machine.topology().preferred_order(&Vec::from_iter(0..8));
        assert_eq!(order, [0, 4, 2, 6, 1, 5, 3, 7]);
    }

    #[test]
    fn unknown_topology_keeps_numerical_order() {
        let machine = Machine::new();
        assert_eq!(machine.topology(), Topology::default());
        // Containers and emulated kernels provide only a part.
        machine.write("cpu/cpu0/topology/thread_siblings_list", "garbage");
        machine.write("cpu/cpu1/topology/thread_siblings_list", "1");
        let topology = machine.topology();
        let expected = Core { number: 1, node: None, cache_sharers: vec![], siblings: vec![1] };
        assert_eq!(topology.cores(), [expected]);
        assert_eq!(topology.preferred_order(&[2, 1, 0]), [0, 1, 2]);
    }
}
