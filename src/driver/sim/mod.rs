//! A simulated machine with one or more devices.
