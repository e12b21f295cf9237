package flags

import (
	"slices"
	"strings"
	"testing"
)

func TestValidateParsesCores(t *testing.T) {
	flags, err := validate("127.0.0.1:7000", "2,4-6", 4096)
	if err != nil || !slices.Equal(flags.Cores, []int{2, 4, 5, 6}) || flags.Threads() != 4 {
		t.Fatal(flags, err)
	}
}

func TestInvalidFlagsAreRejected(t *testing.T) {
	for _, list := range []string{"x", "1-", "3-2", "0,", "-1"} {
		if _, err := parseCores(list); err == nil || !strings.Contains(err.Error(), "list of cores") {
			t.Error(list, err)
		}
	}
	if _, err := validate("", "", 1); err == nil {
		t.Error("missing address was accepted")
	}
	if _, err := validate("127.0.0.1:1", "", 0); err == nil {
		t.Error("size 0 was accepted")
	}
}
