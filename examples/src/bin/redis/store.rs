//! Keys, values and expiry times, and the commands on them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::resp::{Replies, parse_integer};

#[derive(Default)]
pub struct Store(RefCell<HashMap<Box<[u8]>, Entry>>);

struct Entry {
    value: Vec<u8>,
    expires: Option<Instant>,
}

impl Entry {
    fn is_live(&self) -> bool {
        self.expires.is_none_or(|expires| expires > Instant::now())
    }
}

const SYNTAX: &str = "syntax error";

impl Store {
    /// Executes a request and adds the reply.
    pub fn execute(&self, request: &[&[u8]], replies: &mut Replies) {
        let Some((name, arguments)) = request.split_first() else { return };
        // Names are not case-sensitive, and shorter than this.
        let mut upper = [0; 16];
        let length = name.len().min(upper.len());
        upper[..length].copy_from_slice(&name[..length]);
        upper.make_ascii_uppercase();
        match (&upper[..length], arguments) {
            (b"GET", [key]) => self.get(key, replies),
            (b"SET", [key, value, options @ ..]) => match self.set(key, value, options) {
                Ok(true) => replies.simple("OK"),
                Ok(false) => replies.bulk(None),
                Err(error) => replies.error(error),
            },
            (b"DEL", keys) => replies.integer(self.remove(keys)),
            (b"EXISTS", keys) => replies.integer(keys.iter().filter(|key| self.has(key)).count() as i64),
            (b"INCR", [key]) => match self.increment(key) {
                Some(value) => replies.integer(value),
                None => replies.error("value is not an integer or out of range"),
            },
            (b"EXPIRE", [key, seconds]) => match parse_integer(seconds) {
                Some(seconds) => replies.integer(self.expire(key, seconds).into()),
                None => replies.error("value is not an integer or out of range"),
            },
            (b"TTL", [key]) => replies.integer(self.time_to_live(key)),
            (b"DBSIZE", []) => replies.integer(self.live_keys() as i64),
            (b"FLUSHALL" | b"FLUSHDB", _) => {
                self.0.take();
                replies.simple("OK");
            }
            (b"PING", []) => replies.simple("PONG"),
            (b"PING" | b"ECHO", [message]) => replies.bulk(Some(message)),
            (b"SELECT" | b"CLIENT", _) => replies.simple("OK"),
            (b"COMMAND", _) => replies.array(0),
            (b"CONFIG", [_, name]) => {
                replies.array(2);
                replies.bulk(Some(name));
                replies.bulk(Some(b""));
            }
            (b"INFO", _) => replies.bulk(Some(self.info().as_bytes())),
            _ => replies
                .error(&format!("unknown command or wrong number of arguments: '{}'", name.escape_ascii())),
        }
    }

    fn get(&self, key: &[u8], replies: &mut Replies) {
        let entries = self.0.borrow();
        replies.bulk(entries.get(key).filter(|entry| entry.is_live()).map(|entry| &*entry.value));
    }

    fn has(&self, key: &[u8]) -> bool {
        self.0.borrow().get(key).is_some_and(Entry::is_live)
    }

    /// Returns `false` if an option prevents the assignment.
    fn set(&self, key: &[u8], value: &[u8], options: &[&[u8]]) -> Result<bool, &'static str> {
        let mut expires = None;
        let mut options = options.iter();
        let mut permitted = true;
        while let Some(option) = options.next() {
            let mut duration = |unit: fn(u64) -> Duration| {
                let number = options.next().and_then(|digits| parse_integer(digits)).ok_or(SYNTAX)?;
                let number = u64::try_from(number).ok().filter(|number| *number > 0);
                let duration = unit(number.ok_or("invalid expire time in 'set' command")?);
                Instant::now().checked_add(duration).ok_or("invalid expire time in 'set' command")
            };
            match option.to_ascii_uppercase().as_slice() {
                b"EX" => expires = Some(duration(Duration::from_secs)?),
                b"PX" => expires = Some(duration(Duration::from_millis)?),
                b"NX" => permitted &= !self.has(key),
                b"XX" => permitted &= self.has(key),
                _ => return Err(SYNTAX),
            }
        }
        if permitted {
            let mut entries = self.0.borrow_mut();
            match entries.get_mut(key) {
                Some(entry) => {
                    // Reuses the memory of the old value.
                    value.clone_into(&mut entry.value);
                    entry.expires = expires;
                }
                None => _ = entries.insert(key.into(), Entry { value: value.into(), expires }),
            }
        }
        Ok(permitted)
    }

    fn remove(&self, keys: &[&[u8]]) -> i64 {
        let mut entries = self.0.borrow_mut();
        keys.iter().filter(|key| entries.remove(**key).is_some_and(|entry| entry.is_live())).count() as i64
    }

    fn increment(&self, key: &[u8]) -> Option<i64> {
        let mut entries = self.0.borrow_mut();
        let Some(entry) = entries.get_mut(key).filter(|entry| entry.is_live()) else {
            entries.insert(key.into(), Entry { value: b"1".to_vec(), expires: None });
            return Some(1);
        };
        let value = parse_integer(&entry.value)?.checked_add(1)?;
        entry.value = value.to_string().into_bytes();
        Some(value)
    }

    fn expire(&self, key: &[u8], seconds: i64) -> bool {
        let mut entries = self.0.borrow_mut();
        let Some(entry) = entries.get_mut(key).filter(|entry| entry.is_live()) else { return false };
        let duration = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        // A time that cannot be represented is later than the end of the program.
        entry.expires = Instant::now().checked_add(duration);
        true
    }

    /// Returns the remaining time in seconds, -1 without an expiry time, or -2 without the key.
    fn time_to_live(&self, key: &[u8]) -> i64 {
        match self.0.borrow().get(key).filter(|entry| entry.is_live()) {
            Some(Entry { expires: Some(expires), .. }) => {
                expires.saturating_duration_since(Instant::now()).as_secs_f64().round() as i64
            }
            Some(_) => -1,
            None => -2,
        }
    }

    /// Removes all expired entries, and returns the number of the others.
    fn live_keys(&self) -> usize {
        let mut entries = self.0.borrow_mut();
        entries.retain(|_, entry| entry.is_live());
        entries.len()
    }

    fn info(&self) -> String {
        let metrics = anello::RuntimeMetrics::current().unwrap_or_default();
        let driver = anello::current_driver().map_or("", |driver| driver.name);
        format!(
            "# Server\r\nredis_version:7.0.0\r\nio_driver:{driver}\r\n# Clients\r\nconnected_clients:{}\r\n# Stats\r\n\
             polls:{}\r\nsystem_calls:{}\r\n# Keyspace\r\ndb0:keys={}\r\n",
            metrics.tasks,
            metrics.polls,
            metrics.driver.turns,
            self.live_keys()
        )
    }
}
