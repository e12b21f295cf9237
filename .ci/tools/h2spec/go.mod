// The versions with which .ci/conformance builds h2spec. go.sum contains their checksums.
//
// The Go module proxy has no later version of h2spec: v2.3.0 to v2.6.0 declare a module path without the suffix /v2.
// The versions of the dependencies are those that h2spec v2.6.0 requires. h2spec v2.2.1 itself requires none.
module anello/h2spec

go 1.18

require github.com/summerwind/h2spec v2.2.1+incompatible

require (
	github.com/fatih/color v0.0.0-20161025120501-bf82308e8c85
	github.com/inconshreveable/mousetrap v1.0.0
	github.com/mattn/go-colorable v0.1.0
	github.com/mattn/go-isatty v0.0.4
	github.com/spf13/cobra v0.0.0-20170118185516-dc208f4211e7
	github.com/spf13/pflag v1.0.3
	golang.org/x/net v0.0.0-20161104230106-55a3084c9119
	golang.org/x/sys v0.0.0-20190209173611-3b5209105503
)
