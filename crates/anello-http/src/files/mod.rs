//! Static files: what is decided about a request, and how it is answered.
