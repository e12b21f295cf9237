//! Calls that both state machines implement in the same way.

/// Implements the calls for a state machine with the fields `kernel`, `streams`, `listeners`, `sources` and `metrics`.
macro_rules! machine_calls {
    ($machine:ident<$kernel:ident>) => {
        impl<K: $crate::driver::kernel::$kernel> $machine<K> {
            pub fn stream(&self, key: Key) -> Option<&Socket<K>> {
                self.streams.get(key).map(|stream| &stream.socket)
            }

            pub fn is_peer_closed(&self, key: Key) -> bool {
                let sockets = self.kernel.sockets();
                self.streams
                    .get(key)
                    .is_none_or(|stream| sockets.is_peer_closed(&stream.socket, stream.family))
            }

            pub fn is_broken(&self, key: Key) -> bool {
                let sockets = self.kernel.sockets();
                self.streams.get(key).is_none_or(|stream| sockets.is_broken(&stream.socket, stream.family))
            }

            /// Returns `true` if the write direction of a stream has not been shut down.
            pub fn is_write_open(&self, key: Key) -> bool {
                self.streams.get(key).is_some_and(|stream| stream.sends.check_open().is_ok())
            }

            /// Returns `true` if the stream has been released, even if the driver still sends its bytes.
            pub fn is_released(&self, key: Key) -> bool {
                self.streams.get(key).is_none_or(|stream| stream.released)
            }

            /// Returns the streams that have not sent all accepted bytes.
            pub fn sending_streams(&self) -> Vec<Key> {
                self.streams.keys().into_iter().filter(|key| self.unsent_bytes(*key) > 0).collect()
            }

            pub fn reject_pending(&mut self, key: Key) -> usize {
                let Some(listener) = self.listeners.get(key) else { return 0 };
                let rejected = self.kernel.sockets_mut().reject_pending(&listener.socket);
                self.metrics.rejected += rejected as u64;
                rejected
            }

            pub fn take_wakers(&mut self, key: Key) -> [Option<Waker>; 2] {
                let stream = self.streams.get_mut(key);
                stream.map_or_else(Default::default, |stream| {
                    [&mut stream.receive_waker, &mut stream.sends.waker].map(WakerSlot::take)
                })
            }

            /// Replaces the waker slots of a stream and returns the previous ones.
            pub fn replace_wakers(&mut self, key: Key, wakers: [WakerSlot; 2]) -> [WakerSlot; 2] {
                let Some(stream) = self.streams.get_mut(key) else { return wakers };
                let [receive_waker, send_waker] = wakers;
                [
                    std::mem::replace(&mut stream.receive_waker, receive_waker),
                    std::mem::replace(&mut stream.sends.waker, send_waker),
                ]
            }

            pub fn set_ready(&mut self, key: Key, direction: Direction) {
                if let Some(source) = self.sources.get_mut(key) {
                    source.readiness.set_ready(direction);
                }
            }

            pub fn clear_ready(&mut self, key: Key, direction: Direction, clear: Clear, tick: u64) {
                if let Some(source) = self.sources.get_mut(key) {
                    source.readiness.clear(direction, clear, tick);
                }
            }

            pub fn leave(&mut self, key: Key, ticket: Ticket) {
                if let Some(source) = self.sources.get_mut(key) {
                    source.readiness.leave(ticket);
                }
            }

            /// Releases all streams and listeners. Their waiting tasks, which can be those of another runtime, are woken and
            /// get an error.
            pub fn release_all(&mut self, wakes: &mut WakeQueue) {
                for key in self.listeners.keys() {
                    if let Some(listener) = self.listeners.get_mut(key) {
                        listener.waker.wake(wakes);
                    }
                    self.release_listener(key);
                }
                for key in self.streams.keys() {
                    if let Some(stream) = self.streams.get_mut(key) {
                        stream.receive_waker.wake(wakes);
                        stream.sends.waker.wake(wakes);
                    }
                    self.release(key);
                }
            }

            /// Releases all sources. Their waiting tasks are woken and get an error.
            pub fn release_sources(&mut self, wakes: &mut WakeQueue) {
                for key in self.sources.keys() {
                    if let Some(source) = self.sources.get_mut(key) {
                        source.readiness.wake_all(wakes);
                    }
                    self.deregister(key);
                }
            }
        }
    };
}

pub(super) use machine_calls;
