//! Collects facts about network interfaces: their queues and their interrupts.

use anello::server::parse_core_list;

use super::facts::{Interface, Interrupt, Queue};
use super::tree::Tree;

/// Returns the interfaces that belong to a device, so neither loopback nor bridges, tunnels and ends of virtual cables.
pub fn interfaces(tree: &Tree) -> Vec<Interface> {
    let names = interrupt_names(&tree.text("proc/interrupts").unwrap_or_default());
    let interfaces = tree.names("sys/class/net").into_iter();
    interfaces.filter_map(|name| interface(tree, name, &names)).collect()
}

fn interface(tree: &Tree, name: String, names: &[(u32, String)]) -> Option<Interface> {
    let directory = format!("sys/class/net/{name}");
    // Follows a symbolic link.
    let device = tree.root.join(&directory).join("device").canonicalize().ok()?;
    let driver = device.join("driver").canonicalize().ok();
    let driver = driver.and_then(|driver| Some(driver.file_name()?.to_str()?.to_owned()));
    // The interrupts of a virtio device are those of its parent, the PCI device.
    let is_virtio = device.file_name().is_some_and(|name| name.to_string_lossy().starts_with("virtio"));
    let owner = device.parent().filter(|_| is_virtio).unwrap_or(&device);
    let own = tree.names(owner.join("msi_irqs"));
    let belongs = |number: u32, interrupt: &str| match own.is_empty() {
        true => interrupt.contains(&name),
        false => own.contains(&number.to_string()),
    };
    let interrupts = names.iter().filter(|(number, interrupt)| belongs(*number, interrupt));
    let interrupts = interrupts.map(|(number, interrupt)| Interrupt {
        number: *number,
        name: interrupt.clone(),
        cores: interrupt_cores(tree, *number),
    });
    Some(Interface {
        interrupts: interrupts.collect(),
        driver,
        // -1 if the machine has one node only.
        node: tree.number::<usize>(device.join("numa_node")),
        receive_queues: queues(tree, &directory, "rx-", "rps_cpus"),
        transmit_queues: queues(tree, &directory, "tx-", "xps_cpus"),
        name,
    })
}

/// Returns the number and the name of each interrupt of a device.
fn interrupt_names(text: &str) -> Vec<(u32, String)> {
    let interrupt = |line: &str| {
        let (number, rest) = line.trim_start().split_once(':')?;
        // A line ends with the name. A line without a name ends with a counter or the type of the interrupt.
        Some((number.parse().ok()?, rest.split_whitespace().next_back()?.to_owned()))
    };
    text.lines().filter_map(interrupt).collect()
}

fn interrupt_cores(tree: &Tree, number: u32) -> Option<Vec<usize>> {
    // The effective affinity is one of the cores of the requested one, if the hardware selects only one.
    let mut lists = ["effective_affinity_list", "smp_affinity_list"]
        .map(|file| format!("proc/irq/{number}/{file}"))
        .into_iter();
    lists.find_map(|file| tree.line(file)).and_then(|list| parse_core_list(&list))
}

fn queues(tree: &Tree, directory: &str, prefix: &str, file: &str) -> Vec<Queue> {
    let names = tree.names(format!("{directory}/queues"));
    let numbers = names.iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok());
    let cores =
        |number: usize| mask_cores(&tree.line(format!("{directory}/queues/{prefix}{number}/{file}"))?);
    let mut queues: Vec<Queue> = numbers.map(|number| Queue { number, cores: cores(number) }).collect();
    queues.sort_by_key(|queue| queue.number);
    queues
}

/// Parses a mask of cores in the format of the kernel: words of 32 bits in hexadecimal, the most significant first.
fn mask_cores(mask: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for (word, text) in mask.rsplit(',').enumerate() {
        let bits = u32::from_str_radix(text, 16).ok()?;
        cores.extend((0..32).filter(|bit| bits & (1 << bit) != 0).map(|bit| word * 32 + bit));
    }
    Some(cores)
}

/// Returns whether irqbalance is running, or `None` if the processes of the host are not visible.
pub fn irqbalance(tree: &Tree) -> Option<bool> {
    let processes = tree.names("proc").into_iter().filter(|name| name.parse::<u32>().is_ok());
    let commands: Vec<String> =
        processes.filter_map(|process| tree.line(format!("proc/{process}/comm"))).collect();
    if commands.iter().any(|command| command == "irqbalance") {
        return Some(true);
    }
    // A kernel thread that exists on every host, but is not visible in a PID namespace.
    commands.iter().any(|command| command == "kthreadd").then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::tree::tree;

    const INTERRUPTS: &str = "           CPU0       CPU1
 38:          0      55629 PCI-MSIX-0000:00:03.0   1-edge      eth0-TxRx-0
 39:      47179          0 PCI-MSIX-0000:00:03.0   2-edge      eth0-TxRx-1
 40:          0          0 PCI-MSIX-0000:00:04.0   0-edge      nvme0q1
NMI:          0          0   Non-maskable interrupts
ERR:          0
";

    #[test]
    fn reads_queues_and_interrupts_of_devices() {
        let (_directory, tree) = tree(&[
            ("proc/interrupts", INTERRUPTS),
            ("proc/irq/38/smp_affinity_list", "0-1\n"),
            ("proc/irq/38/effective_affinity_list", "1\n"),
            ("proc/irq/39/smp_affinity_list", "0-1\n"),
            ("sys/class/net/lo/mtu", "65536\n"),
            // Allocated, but not requested by the driver.
            ("sys/class/net/eth0/device/msi_irqs/37", "msix\n"),
            ("sys/class/net/eth0/device/msi_irqs/38", "msix\n"),
            ("sys/class/net/eth0/device/msi_irqs/39", "msix\n"),
            ("sys/class/net/eth0/device/numa_node", "-1\n"),
            ("sys/class/net/eth0/queues/rx-0/rps_cpus", "0\n"),
            ("sys/class/net/eth0/queues/rx-1/rps_cpus", "00000001,80000003\n"),
            ("sys/class/net/eth0/queues/tx-0/traffic_class", "0\n"),
        ]);
        let [interface] = interfaces(&tree).try_into().unwrap();
        let interrupt = |number, name: &str, cores| Interrupt { number, name: name.to_owned(), cores };
        assert_eq!((&interface.name[..], interface.node), ("eth0", None));
        let expected =
            [interrupt(38, "eth0-TxRx-0", Some(vec![1])), interrupt(39, "eth0-TxRx-1", Some(vec![0, 1]))];
        assert_eq!(interface.interrupts, expected);
        let queue = |number, cores| Queue { number, cores };
        assert_eq!(interface.receive_queues, [queue(0, Some(vec![])), queue(1, Some(vec![0, 1, 31, 32]))]);
        assert_eq!(interface.transmit_queues, [queue(0, None)]);
    }

    #[test]
    fn virtio_device_has_interrupts_of_its_parent() {
        let (directory, tree) = tree(&[
            ("proc/interrupts", INTERRUPTS),
            ("sys/devices/pci0/msi_irqs/39", "msix\n"),
            ("sys/devices/pci0/virtio2/numa_node", "1\n"),
            ("sys/class/net/eth0/mtu", "1500\n"),
        ]);
        let link = directory.path().join("sys/class/net/eth0/device");
        std::os::unix::fs::symlink("../../../devices/pci0/virtio2", link).unwrap();
        let [interface] = interfaces(&tree).try_into().unwrap();
        assert_eq!(interface.node, Some(1));
        let expected = Interrupt { number: 39, name: "eth0-TxRx-1".to_owned(), cores: None };
        assert_eq!(interface.interrupts, [expected]);
    }

    #[test]
    fn irqbalance_is_unknown_in_pid_namespace() {
        for (processes, expected) in [
            (&[("proc/1/comm", "anello\n")][..], None),
            (&[("proc/1/comm", "systemd\n"), ("proc/2/comm", "kthreadd\n")], Some(false)),
            (&[("proc/2/comm", "kthreadd\n"), ("proc/700/comm", "irqbalance\n")], Some(true)),
        ] {
            let (_directory, tree) = tree(processes);
            assert_eq!(irqbalance(&tree), expected, "{processes:?}");
        }
        let (_directory, empty) = tree(&[]);
        assert!(interfaces(&empty).is_empty());
    }
}
