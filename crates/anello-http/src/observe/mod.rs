//! What a server tells about itself: access log, metrics, health.
