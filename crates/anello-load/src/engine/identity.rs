//! Creation of the identity of a run.

use std::hash::{BuildHasher, Hasher, RandomState};

use flate2::Crc;

use crate::model::config::{Address, LoadConfig, Protocol};
use crate::model::shard::RunIdentity;

/// Returns the identity of a new run.
pub(crate) fn new_identity(load: &LoadConfig) -> RunIdentity {
    RunIdentity {
        id: format!("{:016x}", RandomState::new().build_hasher().finish()),
        settings: format!("{:08x}", checksum(load)),
        shard: load.shard.clone(),
    }
}

/// Returns the CRC-32 of the common settings.
fn checksum(load: &LoadConfig) -> u32 {
    let mut common = LoadConfig {
        target: Address::Abstract(String::new()),
        shard: None,
        start_at: None,
        threads: 1,
        cores: Vec::new(),
        source_addresses: Vec::new(),
        server_pid: None,
        ..load.clone()
    };
    let mut crc = Crc::new();
    if let Protocol::Http(http) = &mut common.protocol {
        crc.update(&std::mem::take(&mut http.body));
        // The configuration of rustls has addresses of memory.
        let tls = http.tls.take().map(|tls| (tls.server_name(), tls.options().clone()));
        crc.update(format!("{tls:?}").as_bytes());
    }
    crc.update(format!("{common:?}").as_bytes());
    crc.sum()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::SystemTime;

    use super::*;
    use crate::model::config::{Arrivals, Mode};
    use crate::model::shard::Shard;

    #[test]
    fn settings_of_shards_are_equal_and_those_of_other_loads_differ() {
        let whole = LoadConfig::http(SocketAddr::from(([10, 0, 0, 1], 80)), "localhost", "/");
        let settings = |change: &dyn Fn(&mut LoadConfig)| {
            let mut load = whole.clone();
            change(&mut load);
            new_identity(&load).settings
        };
        let expected = settings(&|_| ());
        let shard = Some(Shard { index: 2, count: 3, source: "--shard".to_owned() });
        assert_eq!(settings(&|load| load.shard.clone_from(&shard)), expected);
        assert_eq!(settings(&|load| load.start_at = Some(SystemTime::now())), expected);
        assert_eq!(settings(&|load| (load.threads, load.cores) = (2, vec![0, 1])), expected);
        assert_eq!(settings(&|load| load.target = SocketAddr::from(([10, 0, 0, 2], 80)).into()), expected);
        assert_ne!(settings(&|load| load.connections += 1), expected);
        let mode = Mode::Open { per_second: 10, arrivals: Arrivals::Constant, seed: 1 };
        assert_ne!(settings(&|load| load.mode = mode.clone()), expected);
        for body in ["a", "b"] {
            let http = |load: &mut LoadConfig| {
                let Protocol::Http(http) = &mut load.protocol else { panic!("not HTTP") };
                http.body = body.into();
            };
            assert_ne!(settings(&http), expected);
        }
        assert_ne!(new_identity(&whole).id, new_identity(&whole).id);
    }
}
