package caddymodule

// MostReport is how long a report may be, in bytes.
const MostReport = mostReport
